"""`trioha node` with its usual arguments: read without the parser of all commands, to the same effect."""

import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import CycloptsError
from hypothesis import given
from hypothesis import strategies as st

from trioha.cli.app import command_line
from trioha.cli.node_start import NodeArguments, imported_on_use, usual_arguments

WORDS = (
    "-c", "--config", "-p", "--set", "--with-namesrv", "--with-namesrv=true", "--no-with-namesrv",
    "broker.conf", "a/b c.conf", "~/b.conf", "", "-", "--", "--help", "-h", "--version", "-x",
    "-cbroker.conf", "brokerId=1", "--set=brokerId=1", "namesrvAddr=", "a=b=c", "true", "1", "-1",
    "-p=1", "[1]", '["a"]', "{}",
)  # fmt: skip


def parsed(tokens: list[str]) -> NodeArguments | None:
    """What the parser of all commands makes of `tokens`; None if it refuses them."""
    try:
        command, bound, *_ = command_line("node").parse_args(
            ["node", *tokens], print_error=False, exit_on_error=False
        )
    except CycloptsError:
        return None
    if command.__name__ != "node":
        return None
    arguments = bound.arguments
    return NodeArguments(
        arguments.get("config"), arguments.get("set_", ()), arguments.get("with_namesrv", False)
    )


def test_usual_arguments_need_no_parser():
    for tokens, expected in (
        ([], NodeArguments(None, (), False)),
        (["-p", "listenPort=0"], NodeArguments(None, ("listenPort=0",), False)),
        (["-c", "b.conf"], NodeArguments(Path("b.conf"), (), False)),
        (["--config", "b.conf", "--with-namesrv"], NodeArguments(Path("b.conf"), (), True)),
        (
            ["-p", "a=1", "-c", "/etc/b.conf", "--set", "b=x y"],
            NodeArguments(Path("/etc/b.conf"), ("a=1", "b=x y"), False),
        ),
    ):
        assert usual_arguments(tokens) == parsed(tokens) == expected


def test_all_other_arguments_are_left_to_the_parser():
    for text in (
        "--help", "-c", "b.conf", "-c b.conf -p", "-c b.conf -p -1", "-c b.conf --config c.conf",
        "--config=b.conf", "-c b.conf --with-namesrv --with-namesrv", "-c b.conf --with-namesrv true",
        "-c b.conf --frob x",
    ):  # fmt: skip
        assert usual_arguments(text.split()) is None, text
    assert usual_arguments(["-c", ""]) is None


@given(
    st.lists(
        st.one_of(
            st.sampled_from(WORDS).map(lambda word: [word]),
            st.tuples(st.sampled_from(("-c", "--config")), st.sampled_from(WORDS)).map(list),
            st.tuples(st.sampled_from(("-p", "--set")), st.sampled_from(WORDS)).map(list),
        ),
        max_size=5,
    )
)
def test_what_is_read_without_the_parser_is_what_the_parser_reads(parts):
    tokens = [word for part in parts for word in part]
    arguments = usual_arguments(tokens)
    if arguments is not None:
        assert parsed(tokens) == arguments


@pytest.mark.parametrize("tokens", [["-c", "missing.conf"], ["--config=missing.conf"]])
def test_a_refused_configuration_is_one_line_with_or_without_the_parser(tokens, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "trioha", "node", *tokens],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trioha: missing.conf: ")
    assert done.stderr.count("\n") == 1


def test_an_import_for_later_is_done_when_it_is_used(tmp_path, monkeypatch):
    (tmp_path / "late_one.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    with imported_on_use("late_one"):
        import late_one  # type: ignore[import-not-found]

        # As logging does, from Python 3.12 on.
        with pytest.raises(AttributeError, match=r"^late_one\.value is used while others are imported$"):
            late_one.value  # noqa: B018
    assert "late_one" not in sys.modules
    assert late_one.value == 7
    assert sys.modules["late_one"].value == 7
    with imported_on_use("late_one"):
        import late_one as loaded  # type: ignore[import-not-found]
    assert loaded is sys.modules.pop("late_one")


def test_structlog_has_asyncio_when_it_uses_it():
    code = (
        "import sys\nfrom trioha.cli.node_start import imported_on_use\n"
        "with imported_on_use('asyncio'):\n    import structlog\n"
        "assert 'asyncio' not in sys.modules\n"
        "import asyncio\nasyncio.run(structlog.get_logger().ainfo('awaited'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=75, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "awaited" in done.stdout
