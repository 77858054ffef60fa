"""What interrupted replication: connections that took another's place, and offsets that did not fit."""

from __future__ import annotations

from typing import Any, Final

from trioha.recording.events import CloseReason, Kind, code_name
from trioha_analysis.replay_result import Reconnect, SessionReplay

Row = dict[str, Any]

SENTENCES: Final = {
    CloseReason.GAP: "the master has nothing at {offset}, or begins behind it; the own log ends at {own}",
    CloseReason.AHEAD: "the master's log ends at {offset}, before the own one does, at {own}",
    CloseReason.DIVERGED: "the own log and the master's differ at {offset}; the own one ends at {own}",
    CloseReason.OFFSET_MISMATCH: "the master pushed {offset}, the own log ends at {own}",
    CloseReason.BAD_RECORD: "a record at {offset} is damaged; the own log ends at {own}",
    CloseReason.BAD_SIZE: "a size or offset makes no sense at {offset}; the own log ends at {own}",
    CloseReason.STORE_ERROR: "the own disk took nothing at {offset}",
    CloseReason.REQUEST_ABOVE_MAX: "the slave asked from {offset}, the log ends at {own}",
    CloseReason.REQUEST_BELOW_MIN: "the slave needs {offset}, which is deleted; the log ends at {own}",
    CloseReason.ACK_BEYOND_SENT: "the slave acknowledged {offset}, more than was sent; the log ends at {own}",
    CloseReason.ACK_WENT_BACK: "the slave acknowledged {offset}, less than before",
}
"""What was refused, and where: `offset` of the record, `own` end of the log of the node that recorded it."""


def reconnect_rows(replay: SessionReplay) -> list[Row]:
    """A row for each connection over which a replica came back; what is of the one before it is null where it
    is not known which one that was."""
    return [_reconnect(replay, one) for one in replay.returns]


def _reconnect(replay: SessionReplay, one: Reconnect) -> Row:
    after = one.connection.figures
    row: Row = {
        **whose(replay),
        "role": replay.session.identity.role,
        "conn": after.conn,
        "address": one.connection.address,
        "previousConn": None,
        "closeReason": None,
        "closedAtMs": None,
        "awayMs": None,
        "previousOffset": None,
        "requestOffset": after.request_offset,
        "resentBytes": None,
    }
    if one.previous is None:
        return row
    before = one.previous.figures
    closed_ns = before.last_ts_ns if before.closed_ts_ns is None else before.closed_ts_ns
    resent_bytes = None
    if before.sent_offset is not None and after.request_offset is not None:
        resent_bytes = max(0, before.sent_offset - after.request_offset)
    return {
        **row,
        "previousConn": before.conn,
        "closeReason": before.close_reason,
        "closedAtMs": replay.session.wall_of(closed_ns) / 1e6,
        "awayMs": max(0, after.first_ts_ns - closed_ns) / 1e6,
        "previousOffset": before.reported_offset if replay.session.is_slave else before.ack_offset,
        "resentBytes": resent_bytes,
    }


def gap_rows(replay: SessionReplay) -> list[Row]:
    """A row for each offset that did not fit, as far as the recording's first events have them."""
    addresses = {connection.figures.conn: connection.address for connection in replay.connections}
    refused = replay.events[replay.events["kind"] == Kind.REFUSED]
    columns = [refused[name].tolist() for name in ("ts_ns", "seq", "conn", "flags", "offset", "aux")]
    return [
        {
            **whose(replay),
            "role": replay.session.identity.role,
            "atMs": replay.session.wall_of(ts_ns) / 1e6,
            "seq": seq,
            "conn": conn,
            "address": addresses.get(conn),
            "reason": code_name(CloseReason, flags),
            "offset": offset,
            "maxOffset": own,
            "sentence": SENTENCES.get(flags, "refused {offset}; the own log ends at {own}").format(
                offset=offset, own=own
            ),
        }
        for ts_ns, seq, conn, flags, offset, own in zip(*columns, strict=True)
    ]


def whose(replay: SessionReplay) -> Row:
    """The columns of every table that say which session a row is of."""
    identity = replay.session.identity
    return {
        "session": replay.name,
        "brokerName": identity.broker_name,
        "brokerId": identity.broker_id,
    }
