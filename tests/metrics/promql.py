"""The series that a PromQL expression names, for checks of dashboards and rules. No whole parser."""

from __future__ import annotations

import re

from attrs import field, frozen

_TOKENS = re.compile(
    r"""\s+|\[[^\]]*\]|(?P<text>"(?:\\.|[^"\\])*")|(?P<name>[A-Za-z_][\w:]*)|(?P<number>\d[\w.]*)"""
    r"""|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},])"""
)
AGGREGATIONS = frozenset(("sum", "max", "min", "avg", "count", "topk"))
FUNCTIONS = AGGREGATIONS | {"rate", "increase", "histogram_quantile", "label_values", "time"}
GROUPINGS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
OPERATORS = frozenset(("and", "or", "unless", "bool", "offset"))


@frozen
class Selector:
    """One series selector."""

    name: str
    matchers: dict[str, tuple[str, str]] = field(factory=dict)
    """Operator and text by label."""


@frozen
class Expression:
    """What an expression names."""

    selectors: tuple[Selector, ...]
    grouped_by: frozenset[str]


def read(expression: str) -> Expression:
    """Series and labels of an expression. Raises ValueError for what is not understood."""
    tokens = []
    place = 0
    while place < len(expression):
        found = _TOKENS.match(expression, place)
        if found is None:
            raise ValueError(f"{expression[place : place + 20]!r} in {expression!r}")
        if found.lastgroup is not None:
            tokens.append((found.lastgroup, found[0]))
        place = found.end()
    selectors, grouped_by = [], set()
    index = 0
    while index < len(tokens):
        kind, text = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        index += 1
        if kind != "name" or text in OPERATORS:
            continue
        if text in GROUPINGS:
            end = tokens.index(("sign", ")"), index)
            grouped_by |= {name for kind, name in tokens[index:end] if kind == "name"}
            index = end
        elif following == "(" or text in AGGREGATIONS:
            if text not in FUNCTIONS:
                raise ValueError(f"unknown function {text}")
            if text == "label_values":
                # label_values(series, label), of Grafana's variables.
                end = len(tokens) - 1
                grouped_by.add(tokens[end - 1][1])
                del tokens[end - 2 : end]
        else:
            matchers = {}
            if following == "{":
                end = tokens.index(("sign", "}"), index)
                parts = [part for part in tokens[index + 1 : end] if part != ("sign", ",")]
                for label, operator, value in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                    matchers[label[1]] = (operator[1], value[1][1:-1])
                index = end + 1
            selectors.append(Selector(text, matchers))
    return Expression(tuple(selectors), frozenset(grouped_by))
