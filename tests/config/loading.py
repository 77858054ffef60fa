"""Loads texts as a broker.conf."""

from pathlib import Path

import pytest

from trioha.config.loading import LoadedConfig, load_config
from trioha.errors import ConfigError


def load(conf: Path, text: str, *overrides: str) -> LoadedConfig:
    conf.write_text(text)
    return load_config(conf, overrides)


def refusals(conf: Path, text: str, *overrides: str) -> list[str]:
    """The lines of the error that refuses a configuration, without the folder of the file."""
    with pytest.raises(ConfigError) as refused:
        load(conf, text, *overrides)
    return str(refused.value).replace(f"{conf.parent}/", "").splitlines()
