"""How an archive is written."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, optional

from trioha.archive.layout import OBJECT_BYTES_MAX, PAGE_OBJECTS


@frozen(kw_only=True)
class ArchiveSettings:
    """Settings of an `Archiver`; the defaults are those of the command and of the node."""

    interval_s: float = field(default=10.0, validator=gt(0))
    """Between two steps: the archive's tail is at most this old, plus the time of a step."""
    keep_s: float | None = field(default=None, validator=optional(gt(0)))
    """A restore to any time of the last `keep_s` is possible, older objects are deleted; None keeps all."""
    object_bytes_max: int = field(default=OBJECT_BYTES_MAX, validator=and_(gt(0), le(OBJECT_BYTES_MAX)))
    """Bytes of the log in one object."""
    step_bytes_max: int = field(default=4 * OBJECT_BYTES_MAX, validator=gt(0))
    """Bytes of the log after which a step ends and makes them visible, though more is there."""
    page_objects: int = field(default=PAGE_OBJECTS, validator=ge(1))
    """Merged objects after which a page is sealed."""
    merge_objects: int = field(default=16, validator=ge(2))
    """Small objects at the tail that are merged into one."""
    renew_s: float = field(default=30.0, validator=gt(0))
    """An idle writer creates a head this often: it shows that it is alive."""
    watch_s: float = field(default=90.0, validator=gt(0))
    """Another writer that creates no head for this long has ended."""
    delete_after_s: float = field(default=600.0, validator=ge(0))
    """Objects that a head has dropped are deleted this long after it: readers with an older head finish."""
    orphan_s: float = field(default=86_400.0, validator=gt(0))
    """Objects that no head refers to are deleted at this age."""
    sweep_s: float = field(default=6 * 3600.0, validator=gt(0))
    """Between two searches for such objects."""
    retention_s: float = field(default=60.0, validator=ge(0))
    """Between two looks at what retention may delete."""
    recordings_s: float = field(default=30.0, validator=ge(0))
    """Between two looks for new segments of recordings."""
    metadata_bytes_max: int = field(default=16 << 20, validator=gt(0))
    """Of all config files together: larger ones are left out, the largest first."""
