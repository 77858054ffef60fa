"""Values of every wrong type, size and alphabet, for the fields of headers and bodies."""

from __future__ import annotations

from hypothesis import strategies as st

WRONG_NUMBERS = (
    *("", "-", "--5", "+5", " 5", "5_0", "\u0665", "1e3", "1.5", "0x10", "9" * 5000, "-9223372036854775809"),
)
"""Texts that `int` reads and no protocol allows, and numbers beyond all ranges."""

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=10)
"""Also with lone surrogates and control characters."""

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**31) - 2, 2**31 + 2)
    | st.floats()
    | st.integers().map(str)
    | st.sampled_from(WRONG_NUMBERS)
    | ANY_TEXT
)


def json_values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    """Any JSON value, nested a few levels, NaN and infinities included; objects have `keys`."""
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )
