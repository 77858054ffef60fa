"""The script that makes the README's pictures, without the nodes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_screenshots", DOCS / "make_screenshots.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_word_has_its_own_position(script):
    svg = (
        '<text class="c1" x="12.2" y="20" textLength="97.6" clip-path="url(#l)">'
        "&#160;&#160;a&amp;b&#160;cd</text>"
    )
    assert script.pin_words(svg) == (
        '<text class="c1" x="36.6" y="20" textLength="36.6" clip-path="url(#l)">a&amp;b</text>'
        '<text class="c1" x="85.4" y="20" textLength="24.4" clip-path="url(#l)">cd</text>'
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("monitor.svg", {"SYNC_MASTER", "UP", "DOWN", "SILENT", "TRANSFER", "Lag"}),
        ("monitor-light.svg", {"SYNC_MASTER", "UP", "DOWN", "SILENT", "TRANSFER", "Lag"}),
        ("slave.svg", {"Offsets", "appended", "dispatched", "p99", "slaveTimeout"}),
        ("log.svg", {"Holds", "PUT_OK", "Growth", "Disk"}),
        ("events.svg", {"connect", "lost", "node", "What"}),
        ("groups.svg", {"Orders", "billing", "audit", "Members"}),
        ("roles.svg", {"Roles", "MASTER", "SLAVE", "Set", "Replicas", "Controllers", "role", "controller"}),
        ("replay.svg", {"REPLAY", "4x", "speed", "TRANSFER"}),
    ],
)
def test_the_pictures_show_the_figures_of_the_readme(name, shown):
    words = re.findall(r">([^<]+)</text>", (DOCS / "images" / name).read_text())
    assert shown <= set(words)
