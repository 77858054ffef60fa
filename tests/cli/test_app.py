"""The command root: errors, imports and exit codes."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

import pytest
import trio

from trioha import __version__
from trioha.cli import COMMANDS, main
from trioha.cli.app import unwrapped
from trioha.compiled import description
from trioha.errors import ConfigError, PeerError


@pytest.fixture
def status(monkeypatch):
    """Replaces the `status` command by a function."""

    def install(function: Callable[..., object]) -> None:
        module = ModuleType("trioha.cli.status")
        module.status = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "trioha.cli.status", module)

    return install


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__} (kernel: {description()})\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command_without_importing_any(arguments):
    code = (
        "import sys; from trioha.cli import main; code = main(sys.argv[1:]);"
        "print('IMPORTED', [name for name in sys.modules if name.startswith('trioha.cli.')]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    for command, summary in COMMANDS.items():
        assert command in done.stdout
        assert summary in done.stdout
    assert done.stdout.endswith("IMPORTED ['trioha.cli.app']\n")
    assert done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    module = command.replace("-", "_")
    assert find_spec(f"trioha.cli.{module}") is not None
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: trioha {command}")
    assert err == ""


def test_the_help_of_a_command_is_its_docstring(status, capsys):
    def command(*, json: bool = False) -> None:
        """First line.

        Second paragraph.

        Parameters
        ----------
        json
            For machines.
        """

    status(command)
    assert main(["status", "--help"]) == 0
    out = capsys.readouterr().out
    for text in ("First line.", "Second paragraph.", "--json", "For machines."):
        assert text in out
    assert "--no-json" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_says_nothing_empty(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not {word for word in ("False]", "()]", "None]", "inf]") if any(word in line for line in lines)}
    # The summary is one line, and no line of a paragraph ends where the next word would have had room.
    assert lines[3] == ""
    text = lines[: next(index for index, line in enumerate(lines) if line.startswith("╭"))]
    for line, following in itertools.pairwise(text):
        if line and following:
            assert len(line.rstrip()) + 1 + len(following.split()[0]) >= 80, line


def test_a_docstring_is_one_line_for_each_paragraph_and_parameter():
    text = """First.

    One two
    three.

    Parameters
    ----------
    one
        Of one
        thing.
    two
        Of two.
    """
    lines = ["First.", "", "One two three.", "", "Parameters", "----------"]
    assert unwrapped(text).splitlines() == [*lines, "one", "    Of one thing.", "two", "    Of two."]


def test_a_shell_completes_commands_and_options(tmp_path):
    script = tmp_path / "trioha.bash"
    assert main(["--install-completion", "--shell", "bash", "--output", str(script)]) == 0
    for words, number, found in (("trioha sta", 1, "status"), ("trioha status --wi", 2, "--wide")):
        ask = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={number}; _trioha; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split() == [found]


def test_python_m_trioha_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "trioha", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{__version__} (kernel: {description()})\n"


def test_an_unknown_command_is_one_line(refusal):
    for word, line in (
        ("nod", "there is no command 'nod'; did you mean node?"),
        ("xyzzy", "there is no command 'xyzzy'; see trioha --help"),
        ("--frob", "there is no command '--frob'; see trioha --help"),
    ):
        assert refusal(word) == f"trioha: {line}\n"


def test_bad_arguments_are_one_line_that_points_to_the_help(status, refusal):
    def command(address: str, *, count: int = 1) -> int:
        raise AssertionError("called with bad arguments")

    status(command)
    for arguments in (["status", "--frob"], ["status", "--count", "x"], ["status"]):
        line = refusal(*arguments)
        assert line.startswith("trioha: ")
        assert line.endswith("; see trioha status --help\n")


def test_the_result_of_a_command_is_the_exit_code(status):
    for result, code in ((None, 0), (0, 0), (1, 1), (3, 3)):
        status(lambda: result)  # noqa: B023
        assert main(["status"]) == code


def raiser(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


def test_an_expected_error_is_one_line_and_exit_code_2(status, refusal):
    error = ConfigError("is wrong", file="a.conf", line=3, key="k", hint="mend it")
    for raised in (error, BaseExceptionGroup("nursery", [error])):
        status(raiser(raised))
        assert refusal("status") == "trioha: a.conf:3: k: is wrong; mend it\n"


def test_each_of_several_errors_has_its_line(status, capsys):
    inner = ExceptionGroup("inner", [PeerError("gone", address="a:1"), PeerError("gone", address="b:2")])
    status(raiser(ExceptionGroup("outer", [inner])))
    assert main(["status"]) == 2
    assert capsys.readouterr().err == "trioha: a:1: gone\ntrioha: b:2: gone\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()])])
def test_an_interrupt_prints_nothing_and_is_exit_code_130(error, status, capsys):
    status(raiser(error))
    assert main(["status"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_keeps_its_traceback(status):
    status(raiser(ExceptionGroup("nursery", [ConfigError("is wrong"), ZeroDivisionError("a bug")])))
    with pytest.raises(ExceptionGroup) as raised:
        main(["status"])
    assert raised.group_contains(ZeroDivisionError)


def test_an_interrupt_inside_a_nursery_ends_quietly(status):
    async def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    async def command() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted)
            await trio.sleep_forever()

    status(lambda: trio.run(command))
    assert main(["status"]) == 130


@pytest.mark.parametrize(
    "failure", ["error", "ExceptionGroup('nursery', [error, ExceptionGroup('', [error])])"]
)
def test_a_closed_pipe_ends_a_command_without_an_error(failure):
    code = (
        "import sys, types; module = types.ModuleType('trioha.cli.status')\n"
        "def status():\n"
        "    try: [print('x' * 100) for _ in range(100000)]\n"
        f"    except BrokenPipeError as error: raise {failure}\n"
        "module.status = status\n"
        "sys.modules['trioha.cli.status'] = module;"
        "from trioha.cli import main; sys.exit(main(['status']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"x" * 100 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
