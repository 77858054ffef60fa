"""What tests of commands share."""

from __future__ import annotations

from socket import socket

import pytest

from trioha.cli import console, main


@pytest.fixture(autouse=True)
def fresh_consoles():
    """The shared consoles hold the stdout and stderr of the test that made them."""
    console.out.cache_clear()
    console.err.cache_clear()
    yield
    console.out.cache_clear()
    console.err.cache_clear()


@pytest.fixture
def dead_address():
    """An address where connections are refused."""
    with socket() as bound:
        # Bound and not listening: the port stays free of others.
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def refusal(capsys):
    """The line with which a command refuses its arguments: exit code 2, and nothing else is said."""

    def refused(*arguments: str) -> str:
        assert main(list(arguments)) == 2, arguments
        out, err = capsys.readouterr()
        # A low limit of open files is a warning, which comes before.
        lines = [line for line in err.splitlines() if "connections limited by ulimit" not in line]
        assert (out, len(lines)) == ("", 1), (arguments, out, err)
        return f"{lines[0]}\n"

    return refused
