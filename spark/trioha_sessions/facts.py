"""The facts of a session: what does not fit a record, as the peers of connections and the probes.

A torn last line is left out and not damage: that is how a killed recorder ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from trioha.numbers import I32, NATURAL64, parse_int
from trioha.recording.events import CloseReason, code_name
from trioha.recording.layout import FACTS_FILE
from trioha.recording.probes import UNKNOWN_HOST, ProbeCount
from trioha.recording.reader import Session
from trioha_sessions.segments import Damage

_PEER_FIELDS: Final = ("address", "role", "certificate")


@frozen
class Fact:
    """A line of facts.jsonl: information that does not fit a record."""

    seq: int
    """Seq of the record after it."""
    type_: str
    """`connection`, `probes`, `config`, `note`, or an unknown type."""
    fields: Mapping[str, Any]


@frozen
class Peer:
    """The peer of a connection, as a fact names it. Missing fields are None."""

    address: str | None
    """`host:port`."""
    role: str | None
    """Role of the recording node on this connection: `master` or `slave`."""
    certificate: str | None
    """The name in its certificate."""


def read_facts(session: Session) -> tuple[Sequence[Fact], Sequence[Damage]]:
    """The facts of a session in their order; a torn last line is left out."""
    path = session.path / FACTS_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], [Damage(str(path), 0, "missing", 0)]
    except OSError as error:
        return [], [Damage(str(path), 0, f"cannot be read: {error.strerror or error}", 0)]
    facts: list[Fact] = []
    damage: list[Damage] = []
    position = 0
    for line in data.split(b"\n")[:-1]:
        try:
            fields = json.loads(line)
            facts.append(Fact(parse_int(fields.pop("seq"), NATURAL64), str(fields.pop("type")), fields))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damage.append(Damage(str(path), position, "not a fact", 0))
        position += len(line) + 1
    return facts, damage


def peers_of(facts: Iterable[Fact]) -> dict[int, Peer]:
    """The peer of each connection that a fact names, by its number."""
    return {conn: peer for conn, _, peer in named_peers(facts)}


def named_peers(facts: Iterable[Fact]) -> Iterator[tuple[int, int, Peer]]:
    """Connection, seq of its first record and peer of each fact that names one."""
    for fact in facts:
        conn = fact.fields.get("conn")
        if fact.type_ == "connection" and type(conn) is int and I32.low <= conn <= I32.high:
            yield conn, fact.seq, Peer(*(_text(fact.fields.get(name)) for name in _PEER_FIELDS))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def probe_counts(
    facts: Iterable[Fact], ended: Mapping[int, int], hosts: Mapping[int, str]
) -> list[ProbeCount]:
    """The probes of a session, by host and reason, most first.

    `ended`: code of the `CloseReason` of probes that have events of their own, by connection; `hosts`: by
    connection, as far as the recording names them.
    """
    counted: dict[tuple[str, str], int] = {}
    for fact in facts:
        if fact.type_ == "probes":
            host, reason = fact.fields.get("host"), fact.fields.get("reason")
            try:
                count = parse_int(fact.fields.get("count"), NATURAL64)
            except ValueError:
                continue
            if isinstance(host, str) and isinstance(reason, str):
                counted[host, reason] = count
    found = Counter(counted)
    found.update(
        Counter(
            (hosts.get(conn) or UNKNOWN_HOST, code_name(CloseReason, code)) for conn, code in ended.items()
        )
    )
    counts = [ProbeCount(host, reason, count) for (host, reason), count in found.items() if count]
    return sorted(counts, key=_most_first)


def _most_first(one: ProbeCount) -> tuple[int, str, str]:
    return -one.count, one.host, one.reason
