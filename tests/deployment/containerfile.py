"""Reads configs/container/Containerfile: what the image is made of, and how it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

ROOT: Final = Path(__file__).parents[2]
CONTAINERFILE: Final = ROOT / "configs/container/Containerfile"


@frozen
class Instruction:
    """A line of a Containerfile, with those that continue it."""

    name: str
    """In capitals."""
    text: str
    """What follows the name."""

    def json_words(self) -> list[str]:
        """The words of the form `["word", ...]`, without what stands before it (options of HEALTHCHECK)."""
        words: list[str] = json.loads(self.text[self.text.index("[") :])
        return words


@frozen
class Stage:
    """What stands between one FROM and the next."""

    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        """Its instructions of a name."""
        return [each for each in self.instructions if each.name == name]

    def one(self, name: str) -> Instruction:
        """Its only instruction of a name."""
        (found,) = self.all(name)
        return found

    @property
    def variables(self) -> dict[str, str]:
        """Of ENV, and the defaults of ARG."""
        words = (word for name in ("ARG", "ENV") for each in self.all(name) for word in each.text.split())
        return dict(word.split("=", 1) for word in words)


def stages(file: Path = CONTAINERFILE) -> list[Stage]:
    """The stages, in order; what stands before the first FROM is left out."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, whole.split("\n"))):
        name, _, text = line.partition(" ")
        if name.upper() == "FROM":
            found.append([])
        elif found:
            found[-1].append(Instruction(name.upper(), text.strip()))
    return [Stage(tuple(each)) for each in found]


def copied(stage: Stage) -> Sequence[tuple[list[str], str]]:
    """What COPY takes from the checkout, and where it goes to."""
    words = [each.text.split() for each in stage.all("COPY")]
    return [(each[:-1], each[-1]) for each in words if not each[0].startswith("--from=")]
