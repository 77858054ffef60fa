"""What commands print on terminals: nothing that a terminal obeys, and no failure where it has no UTF-8."""

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from attrs import evolve
from rich.table import Table
from rich.text import Text

import trioha.cli
from tests.node_process import run_trioha
from tests.status_samples import connection_status, master_status
from tests.store.support import message, open_store
from tests.terminals import read_until, terminal
from trioha.cli import console, main, print_traceback
from trioha.cli.consume import Output
from trioha.cli.inspect import inspect
from trioha.cli.monitor import monitor
from trioha.cli.offsets import offsets
from trioha.cli.status_lines import print_rows
from trioha.cli.status_rows import rows_of, summary_of
from trioha.cli.status_tables import print_statuses
from trioha.client.messages import ReceivedMessage
from trioha.errors import StoreError, TriohaError
from trioha.node.logs import configure_logs
from trioha.remoting.route import MessageQueue

EVIL = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b2J\x7f\u202e\n"
SHOWN = r"\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b2J\x7f\u202e\n"
FIRST_LINE = SHOWN.removesuffix(r"\n")
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\ud800-\udfff]")
STYLES = re.compile(r"\x1b\[[0-9;]*m")
TRIOHA = [sys.executable, "-m", "trioha"]


def assert_harmless(text):
    """No control character but line feeds, and the colours that are ours on a terminal."""
    plain = STYLES.sub("", text)
    assert not CONTROLS.search(plain), ascii(plain)
    return plain


# -- the console --------------------------------------------------------------------------------------------


def printed(*objects, **options):
    stream = io.StringIO()
    console.PlainConsole(file=stream).print(*objects, **options)
    return stream.getvalue()


@pytest.mark.parametrize("text", ["[/x]", "[fd00::5]:10911", "[bold]b[/bold]", ":warning:", "\\[x]", "a\\"])
def test_a_string_is_text_and_never_markup_in_lines_cells_and_titles(text):
    table = Table(text, title=text)
    table.add_row(text)
    assert printed(text) == f"{text}\n"
    assert printed(table).count(text) == 3


def test_control_characters_are_escaped_in_lines_cells_and_titles():
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    assert printed(EVIL, style="red") == f"{SHOWN}\n"
    drawn = assert_harmless(printed(table))
    assert drawn.count(SHOWN) == 3
    # The escapes are measured: the frame is straight.
    assert len({len(line) for line in drawn.splitlines() if line[0] in "┏┃┡│└"}) == 1


def test_control_characters_of_a_text_with_styles_are_replaced_and_its_lines_stay():
    assert printed(Text("a\x1b[2J\nb\x9b")) == "a\N{REPLACEMENT CHARACTER}[2J\nb\N{REPLACEMENT CHARACTER}\n"


def test_commands_print_through_the_console_only():
    """No module of commands writes to stdout or stderr by another way, or reads markup."""
    # Error lines, modes of the terminal after the monitor, the ready line, and the bytes of messages.
    allowed = {"console.py": {"print", "Console"}, "__init__.py": {"print"}, "demo_run.py": {"print"},
               "namesrv.py": {"print"}}  # fmt: skip
    for path in Path(trioha.cli.__file__).parent.glob("*.py"):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found.add(ast.unparse(node.func))
                found |= {f"{word.arg}=True" for word in node.keywords if ast.unparse(word.value) == "True"}
            elif isinstance(node, ast.ImportFrom):
                found |= {name.name for name in node.names} if node.module == "rich.console" else set()
                found |= {node.module} if node.module == "rich.markup" else set()
        raw = {"print", "Console", "markup=True", "rich.markup", "Text.from_markup", "sys.stdout.write",
               "sys.stderr.write"}  # fmt: skip
        assert found & raw <= allowed.get(path.name, set()), path


# -- commands -----------------------------------------------------------------------------------------------


def test_a_status_shows_a_hostile_broker_as_text(capsys):
    """A broker named [/x] ended it with a MarkupError; an IPv6 address lost its host."""
    evil = master_status(
        10,
        connection_status("[fd00::5]:10911", sent=10, ack=10, state=EVIL),
        broker_name=f"[/x]{EVIL}",
        version=EVIL,
        put_statuses={EVIL: 1},
        dispatch_fault=EVIL,
        read_faults=1,
        read_fault=EVIL,
        kernel=EVIL,
        probes={EVIL: {EVIL: 1}},
    )
    brokers = [evolve(evil, address="[fd00::6]:10911")]
    print_statuses(brokers)
    tables = assert_harmless(capsys.readouterr().out)
    rows = rows_of(brokers)
    print_rows(summary_of(rows), rows)
    out = assert_harmless(capsys.readouterr().out)
    assert SHOWN in tables
    assert "[/x]" in tables
    assert "[fd00::5]:10911" in out
    assert "[fd00::6]:10911" in out
    assert SHOWN in out


def test_an_inspected_record_is_shown_with_its_escapes(tmp_path, capsys):
    store = open_store(tmp_path)
    store.commit_log.append(message(body=f"[/x]{EVIL}订单".encode(), properties=f"k\x01{EVIL}\x02".encode()))
    store.close()
    assert inspect(tmp_path) == 0
    out = assert_harmless(capsys.readouterr().out)
    assert f"[/x]{SHOWN}订单" in out
    assert f"k={SHOWN}" in out
    assert out.count("\n") == 1
    assert inspect(tmp_path, json=True) == 0
    out = assert_harmless(capsys.readouterr().out)
    assert json.loads(out)["properties"]["k"] == EVIL


def test_offsets_of_a_file_are_shown_with_their_escapes(tmp_path, capsys):
    config = tmp_path / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {f"T@[/x]{EVIL}": {"0": 1}}}))
    assert offsets(tmp_path) == 0
    assert f"[/x]{SHOWN}" in assert_harmless(capsys.readouterr().out)


def test_a_message_is_written_as_json_with_its_escapes():
    evil = ReceivedMessage(
        MessageQueue("T", "a", 0), 1, EVIL.encode(), {"k": EVIL, "s": "\ud800"}, "id", 1, 1
    )
    stream = io.BytesIO()
    Output(stream).write([evil])
    value = json.loads(assert_harmless(stream.getvalue().decode()))
    assert (value["body"], value["properties"]) == (EVIL, {"k": EVIL, "s": "\ud800"})


def test_error_lines_are_escaped_each(capsys, monkeypatch):
    def fails(_tokens):
        raise StoreError(f"{EVIL}second line", path=f"/{EVIL}")

    monkeypatch.setattr(trioha.cli, "_call", fails)
    assert main(["inspect"]) == 2
    lines = assert_harmless(capsys.readouterr().err).splitlines()
    assert all(line.startswith("trioha: ") for line in lines)
    assert lines[0] == f"trioha: /{FIRST_LINE}"


def test_a_traceback_of_a_bug_is_escaped(capsys):
    try:
        raise ValueError(EVIL)
    except ValueError:
        print_traceback(*sys.exc_info())
    lines = assert_harmless(capsys.readouterr().err).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f"ValueError: {FIRST_LINE}" in lines


# -- log lines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_log_lines_are_escaped_in_event_values_and_tracebacks(as_json, monkeypatch):
    logged = io.StringIO()
    monkeypatch.setattr(sys, "stderr", logged)
    configure_logs(as_json=as_json)
    log = structlog.get_logger()
    log.warning(f"refused {EVIL}", peer=EVIL, names=[EVIL])
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("failed")
    lines = assert_harmless(logged.getvalue()).splitlines()
    if as_json:
        first, second = map(json.loads, lines)
        assert (first["event"], first["peer"], first["names"]) == (f"refused {EVIL}", EVIL, [EVIL])
        assert f"ValueError: {EVIL}" in second["exception"]
    else:
        assert f"refused {SHOWN}" in lines[0]
        assert f"ValueError: {FIRST_LINE}" in lines


# -- terminals ----------------------------------------------------------------------------------------------


def on_terminal(*arguments, **environment):
    """Exit code and output of a command on a pseudo terminal of 200 columns."""
    given = {"COLUMNS": "200", **environment}
    with terminal([*TRIOHA, *map(str, arguments)], columns=200, environment=given) as (process, descriptor):
        data = read_until(descriptor, None, timeout_s=120)
        return process.wait(60), data


@pytest.mark.process
def test_nothing_of_a_message_or_a_name_reaches_a_terminal_raw(start_node):
    node = start_node(role="ASYNC_MASTER", brokerName="[/x]")
    line = json.dumps({"body": f"body{EVIL}", "tags": "t", "properties": {"k": f"value{EVIL}"}})
    sent = subprocess.run(
        [*TRIOHA, "produce", "T", "--ndjson", "--broker", node.listen_address],
        input=line, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert sent.stdout == "PUT_OK: 1\n", sent.stderr
    for arguments, shown in (
        (("status", node.listen_address), "[/x]"),
        (("consume", "T", "--broker", node.listen_address, "--from", "first"), r"body\u001b]52;c;"),
        (("inspect", node.root), rf"body{SHOWN}"),
        (("inspect", f"/no{EVIL}"), f"trioha: /no{FIRST_LINE}\n"),
    ):
        _, data = on_terminal(*arguments)
        out = assert_harmless(data.decode().replace("\r\n", "\n"))
        assert shown in out, (arguments, out)
    _, data = on_terminal("consume", "T", "--broker", node.listen_address, "--from", "first", "--raw-bodies")
    assert data.replace(b"\r\n", b"\n") == f"body{EVIL}\n".encode()


@pytest.mark.process
def test_output_without_utf_8_has_replacements(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    store.commit_log.append(message(body="é订单".encode()))
    store.close()
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown = run_trioha("inspect", tmp_path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert " ???  " in shown.stdout


def test_json_without_utf_8_loses_nothing(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    console.print_json({"body": "é订单\x7f"})
    assert stdout.buffer.getvalue() == rb'{"body": "\u00e9\u8ba2\u5355\u007f"}' + b"\n"


@pytest.mark.process
def test_the_monitor_refuses_a_terminal_without_utf_8_in_one_line():
    code, data = on_terminal("monitor", "127.0.0.1:1", PYTHONIOENCODING="latin-1")
    (line,) = assert_harmless(data.decode().replace("\r\n", "\n")).splitlines()
    assert code == 2
    assert line.startswith("trioha: monitor: the terminal's encoding is")


def test_the_monitor_refuses_a_terminal_that_cannot_place_its_cursor(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(TriohaError, match="TERM=dumb"):
        monitor("127.0.0.1:1")
