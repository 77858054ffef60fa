"""How an extra is installed, as trioha was installed itself."""

import json
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from trioha import extras
from trioha.extras import how_to_install


class Installed:
    """A distribution that was installed from `origin`."""

    requires = ("trio>=0.31", "numpy>=2; extra == 'monitor'", 'textual<8.3,>=8.2 ; extra == "monitor"')

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, _name):
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (
            {"url": "file:///home/a%20b/trioha", "dir_info": {"editable": True}},
            "-e '/home/a b/trioha[monitor]'",
        ),
        ({"url": "file:///src/trioha", "dir_info": {}}, "'/src/trioha[monitor]'"),
        (
            {"url": "https://host/trioha-0.1.0-py3-none-any.whl", "archive_info": {}},
            "'trioha[monitor] @ https://host/trioha-0.1.0-py3-none-any.whl'",
        ),
        (None, "'numpy>=2' 'textual<8.3,>=8.2'"),
    ],
)
def test_the_command_does_not_ask_an_index_for_trioha(monkeypatch, origin, arguments):
    monkeypatch.setattr(extras, "distribution", lambda _name: Installed(origin))
    assert how_to_install("monitor") == f"run: {sys.executable} -m pip install {arguments}"


def test_a_checkout_that_is_not_installed_has_a_command_too(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert how_to_install("spark").endswith("'.[spark]'")
