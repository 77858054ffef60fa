"""Figures of recorded sessions as DataFrames, in Spark SQL over the source `trioha-session`.

```
session = spark.read.format("trioha-session").load("/var/trioha/sessions")
session.transform(ack_latency).where("latency_ms > 100").orderBy("sent_at").show()
```

Each function takes the events of any number of sessions and returns a DataFrame; nothing runs before an
action. They are made to be read and changed. `trioha replay` has the same figures from a NumPy kernel, all at
once and in a fraction of the time (docs/where-time-goes.md), and more of them.

With the source's option `kinds` Spark is given only the kinds that a function reads, which it names.
KEYFRAMEs are not read: of a session whose first segments are gone, figures begin with the first events of
their own.
Times are those of the wall clock, with the microsecond; durations come from the monotonic clock.
"""

from __future__ import annotations

from enum import IntEnum

from pyspark.sql import DataFrame
from pyspark.sql.functions import create_map, lit

from trioha.recording.events import CloseReason, PutStatus


def ack_latency(events: DataFrame) -> DataFrame:
    """Time from sending each frame to the ack of its last byte, of masters' sessions. Reads TRANSFER, ACK.

    | column | type | |
    |---|---|---|
    | session | string | the session's folder |
    | conn | int | the connection |
    | seq | long | of the frame's TRANSFER |
    | sent_at | timestamp | when the frame was sent |
    | start_offset, end_offset | long | the frame's bytes of the log, `[start_offset, end_offset)` |
    | body_bytes | int | their number |
    | latency_ms | double | until the first ACK at or beyond end_offset; null: none came |
    """
    return _sql(
        """
        with reached as (
            select *,
                   if(kind_name = 'TRANSFER', offset + size, offset) as end_offset,
                   if(kind_name = 'ACK', ts_ns, null) as ack_ns
            from {events}
            where kind_name in ('TRANSFER', 'ACK')
        ),
        acked as (
            -- The earliest of the acks that cover the frame: those at its end, or beyond.
            select *,
                   min(ack_ns) over (
                       partition by session, conn order by end_offset desc
                       range between unbounded preceding and current row
                   ) as acked_ns
            from reached
        )
        select session, conn, seq, time as sent_at, offset as start_offset, end_offset,
               size as body_bytes, (acked_ns - ts_ns) / 1e6 as latency_ms
        from acked
        where kind_name = 'TRANSFER'
        """,
        events,
    )


def lag_by_second(events: DataFrame) -> DataFrame:
    """Lag of each connection in each second with an event of it, of masters' sessions.

    From the first ack to the end of the connection; while a replica has none, its lag is in the table
    `seconds` of `trioha replay` only. Reads STATE, REQUESTED, TRANSFER, HEARTBEAT, ACK, REFUSED, CLOSED.

    | column | type | |
    |---|---|---|
    | session | string | the session's folder |
    | conn | int | the connection |
    | second | timestamp | start of the second |
    | lag_bytes | long | the log's end less the ack before, the worst of the second |
    | max_offset | long | end of the master's log at the last event of the second |
    | ack_offset | long | the ack then |
    """
    return _sql(
        """
        with progress as (
            select session, conn, time,
                   max(aux) over so_far as max_offset,
                   max(if(kind_name = 'ACK', offset, null)) over so_far as ack_offset,
                   max(if(kind_name = 'ACK', offset, null)) over before as ack_before,
                   bool_or(kind_name = 'CLOSED') over before as was_closed
            from {events}
            where role = 'master' and conn >= 0
              and kind_name in ('STATE', 'REQUESTED', 'TRANSFER', 'HEARTBEAT', 'ACK', 'REFUSED', 'CLOSED')
            window so_far as (
                       partition by session, conn order by seq
                       rows between unbounded preceding and current row
                   ),
                   before as (
                       partition by session, conn order by seq
                       rows between unbounded preceding and 1 preceding
                   )
        )
        select session, conn, date_trunc('second', time) as second,
               max(greatest(max_offset - coalesce(ack_before, ack_offset), 0)) as lag_bytes,
               max(max_offset) as max_offset,
               max(ack_offset) as ack_offset
        from progress
        where ack_offset is not null and not coalesce(was_closed, false)
        group by all
        """,
        events,
    )


def waits(events: DataFrame) -> DataFrame:
    """Puts that waited for acks or for the disk, of masters' sessions. Reads WAIT_BEGIN, WAIT_END.

    | column | type | |
    |---|---|---|
    | session | string | the session's folder |
    | request_id | long | as `trioha replay --explain` takes it |
    | end_offset | long | end of the put in the log |
    | begun_at, ended_at | timestamp | of the wait; null where the recording does not have it |
    | copies_needed | int | the master's included; null without begun_at |
    | status | string | PUT_OK, FLUSH_SLAVE_TIMEOUT, ...; null: it did not end |
    | waited_ms | double | as the node measured it, with the microsecond; null: it did not end |
    """
    return _sql(
        """
        with ended as (
            select session, aux as request_id, max(offset) as end_offset,
                   max(time) filter (where kind_name = 'WAIT_BEGIN') as begun_at,
                   max(time) filter (where kind_name = 'WAIT_END') as ended_at,
                   max(size) filter (where kind_name = 'WAIT_BEGIN') as copies_needed,
                   max(flags) filter (where kind_name = 'WAIT_END') as status,
                   max(size) filter (where kind_name = 'WAIT_END') / 1e3 as waited_ms
            from {events}
            where kind_name in ('WAIT_BEGIN', 'WAIT_END')
            group by session, aux
        )
        select session, request_id, end_offset, begun_at, ended_at, copies_needed,
               coalesce(element_at(:names, status), string(status)) as status, waited_ms
        from ended
        """,
        events,
        names=PutStatus,
    )


def reconnects(events: DataFrame) -> DataFrame:
    """Connections after the first one: of a slave to its master, of a master's peers from one host.

    The connection before it is known if the host never had two at a time so far, which several slaves behind
    one address have; the rule of `trioha replay` tells apart more of them. Reads STATE, REQUESTED, TRANSFER,
    HEARTBEAT, ACK, REFUSED, CLOSED, RECEIVED, REPORTED.

    | column | type | |
    |---|---|---|
    | session | string | the session's folder |
    | role | string | of the recording node: master or slave |
    | conn | int | the new connection |
    | address | string | of its peer |
    | request_offset | long | what the slave asked for; null of a slave's session |
    | previous_conn | int | the connection before; null, as all that follows, if it is not known |
    | close_reason | string | of that connection; null if its end was not recorded |
    | ended_at | timestamp | its end, or last event |
    | away_ms | double | from there to the first event of the new connection |
    | previous_offset | long | its last ack, of a slave's session its last report |
    | resent_bytes | long | what was sent on it and is asked for again; null of a slave's session |
    """
    return _sql(
        """
        with own as (
            -- A heartbeat that was sent names an offset of the node, flags 0.
            select *, kind_name = 'HEARTBEAT' and flags = 0 as is_own_heartbeat
            from {events}
            where conn >= 0
              and kind_name in ('STATE', 'REQUESTED', 'TRANSFER', 'HEARTBEAT', 'ACK', 'REFUSED', 'CLOSED',
                                'RECEIVED', 'REPORTED')
        ),
        connections as (
            select session, role, conn, any_value(address) as address,
                   min(ts_ns) as began_ns,
                   min(ts_ns) filter (
                       where role = 'slave' or kind_name in ('REQUESTED', 'TRANSFER', 'ACK', 'HEARTBEAT')
                   ) as came_ns,
                   max(ts_ns) filter (where kind_name = 'CLOSED') as closed_ns,
                   coalesce(max(ts_ns) filter (where kind_name = 'CLOSED'), max(ts_ns)) as ended_ns,
                   coalesce(max(time) filter (where kind_name = 'CLOSED'), max(time)) as ended_at,
                   max_by(flags, seq) filter (where kind_name = 'CLOSED') as reason,
                   min_by(offset, seq) filter (where kind_name = 'REQUESTED') as request_offset,
                   max(if(kind_name = 'TRANSFER', offset + size, offset)) filter (
                       where role = 'master' and (kind_name in ('TRANSFER', 'ACK') or is_own_heartbeat)
                   ) as sent_offset,
                   max(offset) filter (
                       where kind_name in ('ACK', 'REPORTED') or (role = 'slave' and is_own_heartbeat)
                   ) as last_offset
            from own
            group by session, role, conn
        ),
        hosts as (
            -- A slave has one master at a time, wherever that is. Without a request it is a probe.
            select *, if(role = 'slave', 'master', regexp_replace(address, ':[^:]*$', '')) as host
            from connections
            where came_ns is not null
        ),
        in_order as (
            select *,
                   lag(struct(*)) over host_order as before,
                   bool_or(closed_ns is null) over earlier or max(closed_ns) over earlier > came_ns
                       as has_another
            from hosts
            where host is not null
            window host_order as (partition by session, role, host order by came_ns, conn),
                   earlier as (
                       partition by session, role, host order by came_ns, conn
                       rows between unbounded preceding and 1 preceding
                   )
        ),
        paired as (
            select *,
                   if(role = 'slave' or not bool_or(has_another) over (
                       partition by session, role, host order by came_ns, conn
                   ), before, null) as previous
            from in_order
            where before is not null
        )
        select session, role, conn, address, request_offset,
               previous.conn as previous_conn,
               coalesce(element_at(:names, previous.reason), string(previous.reason)) as close_reason,
               previous.ended_at as ended_at,
               (greatest(began_ns, previous.ended_ns) - previous.ended_ns) / 1e6 as away_ms,
               previous.last_offset as previous_offset,
               previous.sent_offset - least(previous.sent_offset, request_offset) as resent_bytes
        from paired
        """,
        events,
        names=CloseReason,
    )


def _sql(query: str, events: DataFrame, *, names: type[IntEnum] | None = None) -> DataFrame:
    """The rows of a query of `{events}`; `:names` is a map from the codes of an enum to their names."""
    codes = [] if names is None else [lit(value) for one in names for value in (one.value, one.name)]
    return events.sparkSession.sql(query, {"names": create_map(*codes)} if codes else None, events=events)
