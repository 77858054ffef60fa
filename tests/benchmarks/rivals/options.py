"""Options that the benchmarks against RocketMQ share."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.interop.rocketmq import ALL_VERSIONS, is_5

RIVALS: Final = tuple(filter(is_5, ALL_VERSIONS))
"""Versions to compare with; the last one is the newest."""


def add_options(parser: argparse.ArgumentParser, works: Collection[str]) -> None:
    """The rival, the works, the place of the stores, and how long to wait for an idle machine."""
    parser.add_argument(
        "--wait-idle",
        type=float,
        default=0.0,
        help="seconds to wait at most, before each measurement, for others to leave the machine alone",
    )
    parser.add_argument(
        "--rocketmq",
        metavar="VERSION",
        default=RIVALS[-1],
        choices=RIVALS,
        help="the rival, of " + ", ".join(RIVALS) + " (default: the newest)",
    )
    parser.add_argument("--works", default=",".join(works), help="which, split by commas")
    parser.add_argument("--folder", type=Path, help="where to put the stores (default: the temporary folder)")


def parse_options(
    parser: argparse.ArgumentParser, arguments: list[str] | None, works: Collection[str]
) -> argparse.Namespace:
    """What the command line asks for; an unknown work is an error."""
    options = parser.parse_args(arguments)
    options.works = options.works.split(",")
    if unknown := [work for work in options.works if work not in works]:
        parser.error(f"no such work: {', '.join(unknown)}; there are {', '.join(works)}")
    return options
