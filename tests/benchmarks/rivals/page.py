"""The parts of docs/benchmarks.md that programs write: each is between two marks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen

PAGE: Final = Path(__file__).parents[3] / "docs" / "benchmarks.md"


@frozen
class Section:
    """A part of the page."""

    begin: str
    """The lines before and after it, which stay."""
    end: str

    def written(self, page: str, text: str) -> str:
        """The page with this text. Raises ValueError for a page without the marks."""
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"the page has no place for it: {self.begin} ... {self.end}")
        return f"{before}{self.begin}\n\n{text}\n\n{self.end}{after}"


TABLE: Final = Section(
    "<!-- table: written by tests/benchmarks/bench_against_rocketmq.py --merge ... --page -->",
    "<!-- end of table -->",
)
GROWTH: Final = Section(
    "<!-- growth: written by tests/benchmarks/plot_growth.py -->", "<!-- end of growth -->"
)
