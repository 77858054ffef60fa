"""One table of several runs of the benchmarks beside RocketMQ, from what they printed with --json.

    python tests/benchmarks/merge_runs.py table-*.json clients-*.json [--page]

With `--page` the table goes to docs/benchmarks.md. Medians of the runs, with the runs' spread.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.report import merge, run_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- table: written by tests/benchmarks/merge_runs.py --page -->"
END: Final = "<!-- end of table -->"


def main() -> None:
    """Merge and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    parser.add_argument("--page", action="store_true", help="write the table to docs/benchmarks.md")
    options = parser.parse_args()
    try:
        run = merge([run_of(json.loads(path.read_text())) for path in options.runs])
    except ValueError as error:
        sys.exit(f"not merged: {error}")
    if not options.page:
        print(run.markdown())
        return
    if run.is_quick:
        sys.exit("figures of quick runs do not go to the page")
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"the page has no place for it: {BEGIN} ... {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{run.markdown()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
