"""`python -m tests.hostile`: hostile frames against live nodes, as many as wanted."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.faults.cluster import exit_on_sigterm
from tests.hostile.generator import frame_of
from tests.hostile.run import Result, run_frames, run_seed

SHOWN_BYTES: Final = 400
SUSPECTS_MAX: Final = 16
"""Suspects of one finding that are tried one by one."""
PROGRESS_FRAMES: Final = 10_000


def main() -> int:
    """Exit code 1 if anything happened that must not: frames are named by SEED:INDEX."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Send hostile frames to live nodes in both roles.",
    )
    parser.add_argument("--count", "-n", type=int, default=100_000, help="how many frames")
    parser.add_argument("--seed", type=int, default=1, help="the same seed is the same frames")
    parser.add_argument(
        "--only", type=_named, action="append", default=[], metavar="SEED:INDEX",
        help="send this frame alone to fresh nodes, and show it; may be given several times",
    )  # fmt: skip
    parser.add_argument("--users", action="store_true", help="nodes check users, most frames are signed")
    parser.add_argument("--keep", action="store_true", help="keep the folder also if nothing was found")
    options = parser.parse_args()
    if options.count < 1 or not 0 <= options.seed < 1 << 23:
        parser.error("--count is at least 1, --seed 0 to 8388607")
    exit_on_sigterm()
    root = Path(tempfile.mkdtemp(prefix="trioha-hostile-"))
    failed = True
    try:
        if options.only:
            found = [
                _alone(seed, index, root / str(number), with_users=options.users)
                for number, (seed, index) in enumerate(options.only)
            ]
            failed = any(found)
        else:
            failed = _run(options.seed, options.count, root, with_users=options.users)
    finally:
        if options.keep or failed:
            print(f"kept in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root)
    return int(failed)


def _named(name: str) -> tuple[int, int]:
    seed, _, index = name.partition(":")
    return int(seed), int(index)


def _alone(seed: int, index: int, folder: Path, *, with_users: bool) -> bool:
    """Send one frame, and say what came of it; whether it failed."""
    frame = frame_of(seed, index, is_signed=with_users)
    print(f"{frame}, {frame.outcome}\n{len(frame.data)} bytes: {frame.data[:SHOWN_BYTES]!r}")
    result = run_frames(seed, [frame], folder, warm_up=0, with_users=with_users)
    _show(result)
    return bool(result.findings)


def _run(seed: int, count: int, root: Path, *, with_users: bool) -> bool:
    def show_progress(done: int) -> None:
        if done and done % PROGRESS_FRAMES == 0:
            print(f"{done:,} of {count:,} frames", file=sys.stderr)

    result = run_seed(seed, count, root / "run", with_users=with_users, on_progress=show_progress)
    _show(result)
    for finding in result.counters.findings:
        for frame in finding.suspects if 1 < len(finding.suspects) <= SUSPECTS_MAX else ():
            _alone(frame.seed, frame.index, root / f"alone-{frame.index}", with_users=with_users)
    if result.findings:
        print(
            f"one frame again: python -m tests.hostile {'--users ' if with_users else ''}--only SEED:INDEX",
            file=sys.stderr,
        )
    return bool(result.findings)


def _show(result: Result) -> None:
    counters = result.counters
    print(f"seed {result.seed}: {counters.done:,} frames in {result.seconds:.0f} s")
    counts_by_name = {"kinds": counters.frames, "answers": counters.codes, "honest puts": result.honest}
    for name, counts in counts_by_name.items():
        for key, number in counts.items():
            print(f"  {name}: {number:,} {key}")
    print(f"  honest puts: the slowest took {result.honest_slowest_ms:,} ms")
    for name, (before, after) in result.health.items():
        print(f"  {name} before: {before}\n  {name} after:  {after}")
    for finding in result.findings:
        print(f"  FOUND {finding}")


if __name__ == "__main__":
    sys.exit(main())
