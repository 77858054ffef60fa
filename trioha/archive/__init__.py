"""Archives: a broker's log, metadata and recordings as objects of an object storage.

`docs/archive-format.md` is the format; `layout` has its values, `heads` how a head is read and replaced,
`objects` the object storage, `reader` what there is in an archive.
"""
