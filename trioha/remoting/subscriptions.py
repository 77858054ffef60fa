"""Which messages of a topic a consumer wants: subscriptions of heartbeats and pulls.

See docs/protocol/remoting.md#pulls, docs/protocol/remoting.md#clients-and-groups.

An expression of type TAG is `*` or tags with `||` between them. The broker compares tags by their hash code;
different tags may share one, so consumers compare the tags themselves.
"""

# ruff: noqa: TRY004 - a value of another type is the peer's mistake, not a caller's

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from trioha.numbers import I32, I64, parse_int
from trioha.store.tags import java_hash

ALL_TAGS: Final = "*"
TAG: Final = "TAG"
EXPRESSION_CHARS_MAX: Final = 64 * 1024
TAGS_MAX: Final = 1024
_NO_CODES: Final[frozenset[int]] = frozenset()


@frozen
class Subscription:
    """One topic of a consumer group."""

    topic: str
    expression: str = ALL_TAGS
    tags: tuple[str, ...] = ()
    """Of the expression; none for `*`."""
    codes: frozenset[int] = _NO_CODES
    """Their hash codes."""
    version: int = 0
    """subVersion: the higher, the newer."""
    expression_type: str = TAG
    class_filter: bool = False

    @property
    def is_tag_type(self) -> bool:
        """Whether the expression is one of tags."""
        return self.expression_type in {"", TAG}

    @property
    def tag_codes(self) -> frozenset[int] | None:
        """Hash codes of the wanted tags; None for all messages."""
        return None if self.expression == ALL_TAGS or self.class_filter else self.codes

    @classmethod
    def parse(
        cls, topic: str, expression: str | None, *, version: int = 0, expression_type: str | None = None
    ) -> Subscription:
        """Of an expression as a pull carries it. Raises ValueError for one without a tag, or too long."""
        kind = expression_type or TAG
        text = (expression or "").strip()
        if not text or text == ALL_TAGS:
            return cls(topic, version=version, expression_type=kind)
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ValueError(f"an expression of {len(text)} characters")
        if kind != TAG:
            return cls(topic, text, version=version, expression_type=kind)
        tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
        if not tags or len(tags) > TAGS_MAX:
            raise ValueError(f"an expression of {len(tags)} tags")
        return cls(topic, text, tags, frozenset(map(java_hash, tags)), version, kind)

    @classmethod
    def of_json(cls, value: object) -> Subscription:
        """Of a SubscriptionData object. Raises ValueError."""
        if not isinstance(value, dict):
            raise ValueError("a subscription is not an object")
        topic, expression = value.get("topic"), value.get("subString")
        kind = value.get("expressionType") or TAG
        tags, codes = value.get("tagsSet") or [], value.get("codeSet") or []
        if not (isinstance(topic, str) and isinstance(expression, str | None) and isinstance(kind, str)):
            raise ValueError("topic, subString or expressionType of a subscription is not a text")
        if not (
            isinstance(tags, list) and isinstance(codes, list) and max(len(tags), len(codes)) <= TAGS_MAX
        ):
            raise ValueError("tagsSet or codeSet of a subscription is not a list, or a long one")
        if not all(isinstance(tag, str) for tag in tags):
            raise ValueError("tagsSet of a subscription has something other than texts")
        if len(topic) > 255 or sum(map(len, tags)) + len(expression or "") > EXPRESSION_CHARS_MAX:
            raise ValueError("a subscription is too long")
        return cls(
            topic,
            expression or ALL_TAGS,
            tuple(tags),
            frozenset(parse_int(code, I32) for code in codes),
            parse_int(value.get("subVersion", 0), I64),
            kind,
            value.get("classFilterMode") is True,
        )

    def to_json(self) -> Mapping[str, object]:
        """Its SubscriptionData object."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }

    @property
    def cost_bytes(self) -> int:
        """About how much memory it takes."""
        return 500 + 2 * len(self.expression) + 150 * len(self.tags) + 2 * sum(map(len, self.tags))
