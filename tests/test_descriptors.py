"""What counts as left open by a test, and when its resources are closed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.descriptors import left_open, open_descriptors


def test_a_file_and_a_socket_that_stay_open_are_named(tmp_path: Path) -> None:
    before = open_descriptors()
    assert left_open(before) == []
    with (tmp_path / "some").open("wb") as file, socket.socket() as connection:
        lines = left_open(before)
        assert lines[0] == f"{file.fileno()}: {tmp_path / 'some'}"
        assert lines[1].startswith(f"{connection.fileno()}: ")
        assert len(lines) == 2
    assert left_open(before) == []


def test_what_only_the_garbage_collector_closes_is_named_as_such(tmp_path: Path) -> None:
    class Holder:
        """Closes its descriptor when it is collected, and is in a reference cycle."""

        def __init__(self) -> None:
            self.descriptor = os.open(tmp_path, os.O_RDONLY)
            self.itself = self

        def __del__(self) -> None:
            os.close(self.descriptor)

    before = open_descriptors()
    number = Holder().descriptor
    assert left_open(before) == [f"{number}: {tmp_path} (closed by the garbage collector only)"]
    assert left_open(before) == []
