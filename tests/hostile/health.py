"""What a process holds: memory, descriptors, threads. Linux only, as /proc is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from attrs import Factory, frozen

PRIVATE_GROWTH_KB_MAX = 48 * 1024
"""What a node's private memory may grow by.

Not for what strangers send, of which hundreds of megabytes pass through in a run, but for what may be kept
with a maximum: caches of topics and hosts (4,096 each), consume queues of invented topics, buffers of the
recorder, and what the allocator does not give back of frames of 16 MiB.
"""
THREADS_GROWTH_MAX = 2
"""Worker threads (syncs, questions to the disk) come and go; trio ends one that was idle for ten seconds."""


@frozen
class Health:
    """One process at one moment."""

    private_kb: int
    """Anonymous memory: files that are mapped are not counted, since the log grows."""
    resident_kb: int
    descriptors: Counter[str] = Factory(Counter)
    """By what they are: `socket`, `file`, `anon_inode`, `pipe`."""
    threads: int = 0

    @classmethod
    def of(cls, pid: int) -> Health:
        """The process as it is now."""
        process = Path(f"/proc/{pid}")
        rollup = {}
        for line in (process / "smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            rollup[name] = int(rest.split()[0])
        descriptors: Counter[str] = Counter()
        for path in (process / "fd").iterdir():
            try:
                target = str(path.readlink())
            except FileNotFoundError:
                continue  # closed since it was listed
            descriptors["file" if target.startswith("/") else target.partition(":")[0]] += 1
        return cls(
            private_kb=rollup["Anonymous"],
            resident_kb=rollup["Rss"],
            descriptors=descriptors,
            threads=len(list((process / "task").iterdir())),
        )

    @property
    def sockets(self) -> int:
        """Connections and listeners."""
        return self.descriptors["socket"]

    def growth_beyond(self, before: Health, *, files_max: int) -> list[str]:
        """What is more than it may be, compared with `before`, a line each.

        Descriptors must be as many as before, but for files: `files_max` more of them may be open, those of
        the log and of queues that were made since.
        """
        grown = []
        if self.private_kb - before.private_kb > PRIVATE_GROWTH_KB_MAX:
            grown.append(f"private memory grew from {before.private_kb} to {self.private_kb} kB")
        for kind in sorted(self.descriptors.keys() | before.descriptors.keys()):
            more = self.descriptors[kind] - before.descriptors[kind]
            if more > (files_max if kind == "file" else 0):
                grown.append(f"{kind} descriptors grew from {before.descriptors[kind]} by {more}")
        if self.threads - before.threads > THREADS_GROWTH_MAX:
            grown.append(f"threads grew from {before.threads} to {self.threads}")
        return grown
