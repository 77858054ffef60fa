"""The commands of docs/start.md and docs/how-to/backup.md, as they stand there, one page after the other.

The first block of a page names what an installation has. The test replaces its values and nothing else.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.page_shell import BLOCK, shell, trioha_program, with_values
from tests.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.full]

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text())


def test_the_page_starts_a_pair_and_the_next_backs_it_up(tmp_path: Path) -> None:
    folder, programs = tmp_path / "pair", tmp_path / "bin"
    trioha_program(programs)
    names, start, messages, kill, watch, compare = blocks_of("start.md")
    settings = {
        "FOLDER": folder,
        "MASTER_PORT": free_port(),
        "HA_PORT": free_port(),
        "SLAVE_PORT": free_port(),
        "NAMES_PORT": free_port(),
    }
    with shell(tmp_path, programs) as run:
        run.name(with_values(names.replace("$HOME/trioha-start", "/srv/trioha-start"), settings))
        run.run(start)
        said = run.run(messages)
        assert "PUT_OK: 1,000" in said
        assert len(re.findall(r"^[0-3] \d+ \d+$", said, re.MULTILINE)) == 4
        assert "PUT_OK" not in {
            json.loads(line)["status"] for line in run.run(kill).splitlines() if line.startswith("{")
        }
        run.run_on_terminal(watch, b"broker-a", key=b"q")
        assert "equal from offset 0" in run.run(compare)

        names, back_up, restore = blocks_of("how-to/backup.md")
        values = {
            "STORE": folder / "master",
            "ARCHIVE": f"file://{tmp_path}/archive",
            "RESTORED": tmp_path / "restored",
        }
        run.name(with_values(names.replace("$HOME", "/srv"), values))
        assert "generation" in run.run(back_up)
        run.run(restore)
        assert {path.name for path in (tmp_path / "restored").iterdir()} >= {"commitlog", "config"}
