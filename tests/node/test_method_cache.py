"""Compiled methods of attrs classes are kept between starts, under the rules of bytecode."""

import os
import subprocess
import sys
from types import CodeType

import attr
import pytest

from tests.ports import free_port
from trioha.node import method_cache
from trioha.node.method_cache import MethodCache, methods_kept

SOURCE = "answer = 42\n"


@pytest.fixture(autouse=True)
def bytecode_may_be_written(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def compiled(monkeypatch):
    """File names of what is really compiled."""
    names = []

    def compile_and_note(source: str, filename: str, mode: str) -> CodeType:
        names.append(filename)
        return compile(source, filename, mode)

    monkeypatch.setattr(method_cache, "compile", compile_and_note, raising=False)
    return names


def make_class(name: str = "Point", text: str = "x: int = 3\n    y: str = 'a'") -> type:
    """A new attrs class, as an import makes it."""
    names: dict[str, type] = {"__name__": "made"}
    source = f"from attrs import field, frozen\n@frozen\nclass {name}:\n    {text}\n"
    exec(source, names)
    return names[name]


def test_methods_are_compiled_by_the_first_start_only(tmp_path, compiled):
    path = tmp_path / "made" / "methods"
    with methods_kept(path):
        first = make_class()
    assert compiled == ["<attrs generated methods made.Point>"]
    with methods_kept(path):
        second = make_class()
    assert len(compiled) == 1
    assert second() == second(x=3)
    assert second(x=4) != second()
    assert second() != first()
    assert len({second(), second(), second(y="b")}) == 2
    assert repr(second()) == "Point(x=3, y='a')"
    assert list(path.parent.iterdir()) == [path]


def test_the_file_of_a_start_without_new_classes_is_not_written_again(tmp_path):
    path = tmp_path / "methods"
    for _ in range(2):
        with methods_kept(path):
            make_class()
        os.utime(path, (1, 1))
    with methods_kept(path):
        make_class()
    assert path.stat().st_mtime == 1
    with methods_kept(path):
        make_class("Other")
    assert path.stat().st_mtime > 1


def test_an_edited_class_has_its_new_methods(tmp_path, compiled):
    path = tmp_path / "methods"
    with methods_kept(path):
        make_class()
    with methods_kept(path):
        edited = make_class(text="x: int = 3\n    z: int = field(default=4)")
    assert repr(edited()) == "Point(x=3, z=4)"
    assert len(compiled) == 2


def test_attrs_is_as_before_afterwards(tmp_path):
    before = dict(vars(attr._make))
    with pytest.raises(RuntimeError), methods_kept(tmp_path / "methods"):
        raise RuntimeError
    assert vars(attr._make) == before
    assert not (tmp_path / "methods").exists()


def test_another_attrs_makes_its_classes_alone(tmp_path, monkeypatch):
    monkeypatch.delattr(attr, "_make")
    with methods_kept(tmp_path / "methods"):
        assert repr(make_class()()) == "Point(x=3, y='a')"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_replaced(tmp_path, compiled):
    path = tmp_path / "methods"
    with methods_kept(path):
        make_class(text="x: int")
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(0, len(whole), 37)]
    damaged += [
        whole[:at] + bytes((whole[at] ^ 255,)) + whole[at + 1 :] for at in (*range(12), 20, len(whole) - 1)
    ]
    for content in damaged:
        path.write_bytes(content)
        compiled.clear()
        with methods_kept(path):
            made = make_class(text="x: int")
        assert repr(made(1)) == "Point(x=1)"
        with methods_kept(path):
            make_class(text="x: int")
        assert len(compiled) == 1


def test_nothing_is_written_where_bytecode_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with methods_kept(tmp_path / "methods"):
        make_class()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_leaves_the_work_to_each_start(tmp_path, compiled):
    (tmp_path / "file").write_bytes(b"")
    for _ in range(2):
        with methods_kept(tmp_path / "file" / "methods"):
            make_class()
    assert len(compiled) == 2
    assert (tmp_path / "file").read_bytes() == b""


def test_what_no_start_uses_goes_when_there_are_too_many(tmp_path, monkeypatch, compiled):
    path = tmp_path / "methods"
    monkeypatch.setattr(method_cache, "ENTRIES_MAX", 3)
    for names in ("AB", "BC", "BD", "BCD"):
        with methods_kept(path):
            for name in names:
                make_class(name)
    # A, B; C; D, with which A and C go; C.
    assert [name[-2] for name in compiled] == ["A", "B", "C", "D", "C"]


def test_code_is_compiled_as_the_builtin_compiles_it(tmp_path):
    cache = MethodCache(tmp_path / "methods")
    assert eval(cache.compile("6 * 7", "<x>", "eval")) == 42
    assert cache.compile(SOURCE, "<x>", "exec") is cache.compile(SOURCE, "<x>", "exec")
    assert cache.compile(SOURCE, "<y>", "exec").co_filename == "<y>"
    kept = cache.compile(SOURCE, "<x>", "exec", 0, dont_inherit=True)
    assert kept is not cache.compile(SOURCE, "<x>", "exec")


@pytest.mark.process
@pytest.mark.full
def test_what_an_installation_keeps_is_what_every_start_needs(start_node, tmp_path):
    """No start adds anything: all parts are there, and no method differs from process to process."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")
    subprocess.run([sys.executable, "-m", "trioha.node.method_cache"], env=env, check=True, timeout=75)
    (kept,) = (tmp_path / "bytecode").rglob("*.methods")
    before = kept.stat()
    assert before.st_size > 100_000
    parts = {
        "arguments": ["--with-namesrv"],
        "trioha.metricsPort": 0,
        "trioha.recordDir": tmp_path / "sessions",
        "namesrvAddr": f"127.0.0.1:{free_port()}",
    }
    nowhere = {"role": "SLAVE", "ha_master_address": "127.0.0.1:9"}
    for number, options in enumerate(({"role": "ASYNC_MASTER"}, {"role": "ASYNC_MASTER", **parts}, nowhere)):
        start_node(str(number), environment=env | {"PYTHONHASHSEED": str(number)}, **options).kill()
        now = kept.stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), number
