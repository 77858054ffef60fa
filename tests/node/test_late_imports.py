"""Imports after the ready line: in a worker thread, and a shortage leaves them to the first request."""

import errno
import sys
import threading
from importlib import import_module

import pytest
from structlog.testing import capture_logs

from trioha.node import late_imports
from trioha.node.late_imports import MODULES, import_late


async def test_late_modules_are_imported_in_a_worker_thread(monkeypatch):
    imported = []

    def in_thread(name: str) -> None:
        imported.append((name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(late_imports, "MODULES", ("sys", "one.missing", "another.missing"))
    monkeypatch.setattr(late_imports, "import_module", in_thread)
    await import_late()
    assert imported == [("one.missing", False), ("another.missing", False)]


@pytest.mark.parametrize("shortage", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
async def test_a_shortage_leaves_imports_to_the_first_request(monkeypatch, shortage):
    def refuse(name: str) -> None:
        raise shortage

    monkeypatch.setattr(late_imports, "MODULES", ("one.missing",))
    monkeypatch.setattr(late_imports, "import_module", refuse)
    with capture_logs() as logs:
        await import_late()
    assert [(line["log_level"], line["module"]) for line in logs] == [("warning", "one.missing")]


async def test_a_module_that_is_not_there_is_a_fault(monkeypatch):
    monkeypatch.setattr(late_imports, "MODULES", ("trioha.missing",))
    with pytest.raises(ModuleNotFoundError):
        await import_late()


def test_late_modules_exist():
    for name in MODULES:
        assert import_module(name) is sys.modules[name]
