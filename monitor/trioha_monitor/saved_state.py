"""What the user chose on the screens, kept from one run to the next: `monitor.json` in the state folder.

The file is one JSON object. A key that is missing, and a value that this version does not have, leave the
DEFAULT_STATE.

| key | value |
|---|---|
| `screen` | id of the pane that was visible last |
| `units` | name of the units of bytes: see `ByteUnits` |
| `theme` | name of the theme |
| `sort` | object: by the id of a table, the key of its column or null, and whether it is descending |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import Factory, frozen

from trioha.errors import ConfigError
from trioha_monitor.rendering import DARK, ByteUnits
from trioha_monitor.widgets.row_table import Order
from trioha_monitor.widgets.top_bar import PANES

FILE_NAME: Final = "monitor.json"


@frozen
class SavedState:
    """What the user chose."""

    pane: str = "replicas"
    """The visible pane."""
    units: ByteUnits = ByteUnits.BINARY
    theme: str = DARK.name
    """Name of a theme, which may be gone."""
    orders: Mapping[str, Order] = Factory(dict)
    """How tables are sorted, by their ids."""


DEFAULT_STATE: Final = SavedState()


def read_state(path: Path) -> SavedState:
    """The state of the last run; the default before the first one. Blocks.

    Raises ConfigError for a file that cannot be read or has other content.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return DEFAULT_STATE
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    except ValueError:
        raise _malformed(path) from None
    if not isinstance(document, dict):
        raise _malformed(path)
    pane, units, theme = (document.get(key) for key in ("screen", "units", "theme"))
    return SavedState(
        pane if isinstance(pane, str) and pane in PANES else DEFAULT_STATE.pane,
        ByteUnits[units]
        if isinstance(units, str) and units in ByteUnits.__members__
        else DEFAULT_STATE.units,
        theme if isinstance(theme, str) else DEFAULT_STATE.theme,
        _orders(document.get("sort")),
    )


def write_state(path: Path, state: SavedState) -> None:
    """Replace the file. Blocks. Raises OSError."""
    document = {
        "screen": state.pane,
        "units": state.units.name,
        "theme": state.theme,
        "sort": {table: [order.key, order.is_descending] for table, order in state.orders.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    written.replace(path)


def _orders(value: Any) -> dict[str, Order]:
    orders: dict[str, Order] = {}
    for table, order in value.items() if isinstance(value, dict) else ():
        match order:
            case [str() | None as key, bool() as is_descending]:
                orders[table] = Order(key, is_descending)
    return orders


def _malformed(path: Path) -> ConfigError:
    return ConfigError("is not a saved state of the monitor", file=path, hint="the next exit replaces it")
