"""A node: builds the rooms, starts them in one nursery tree and stops them.

A room imports the libraries and modules of a part that a setting turns on where it builds that part: a node
without the setting starts sooner and is smaller.
"""
