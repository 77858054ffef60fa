"""The rule that joins lost and new connections: only where there is exactly one candidate."""

from trioha_sessions.reconnects import (
    FRESH_NS,
    LOST_NS,
    LOST_PER_HOST_MAX,
    Arrival,
    Connection,
    Outage,
    Reconnects,
    Span,
    pair,
    replicas,
)

S = 10**9


def connection(key, host="10.0.0.2", *, port=0, identity=""):
    return Connection(key, f"{host}:{port or 40_000 + key}", identity)


def one(reconnects, new, *, at_ns):
    (arrival,) = reconnects.came([new], at_ns=at_ns)
    return arrival


def test_first_connection_of_a_host_is_a_new_replica():
    arrival = one(Reconnects(), connection(1), at_ns=0)
    assert arrival == Arrival(connection(1))
    assert not arrival.is_reconnect


def test_connection_of_the_only_lost_one_of_its_host_continues_it():
    reconnects = Reconnects()
    reconnects.lost(connection(1), at_ns=5 * S)
    reconnects.lost(connection(2, "10.0.0.3"), at_ns=5 * S)
    arrival = one(reconnects, connection(3), at_ns=6 * S)
    assert arrival.previous == 1
    assert arrival.is_reconnect
    # The lost connection is continued: the next one of the host is a new replica.
    assert not one(reconnects, connection(4), at_ns=7 * S).is_reconnect
    assert one(reconnects, connection(5, "10.0.0.3"), at_ns=8 * S).previous == 2


def test_the_same_port_of_another_host_joins_nothing():
    reconnects = Reconnects()
    reconnects.lost(connection(1, "10.0.0.2", port=50_000), at_ns=0)
    assert not one(reconnects, connection(2, "10.0.0.3", port=50_000), at_ns=S).is_reconnect


def test_the_very_same_address_is_joined_though_others_of_its_host_are_lost():
    reconnects = Reconnects()
    reconnects.lost(connection(1, port=50_001), at_ns=0)
    reconnects.lost(connection(2, port=50_002), at_ns=0)
    assert one(reconnects, connection(3, port=50_002), at_ns=S).previous == 2
    assert one(reconnects, connection(4, port=50_009), at_ns=2 * S).previous == 1


def test_of_two_lost_ones_of_a_host_neither_is_joined():
    reconnects = Reconnects()
    reconnects.lost(connection(1), at_ns=0)
    reconnects.lost(connection(2), at_ns=1 * S)
    first = one(reconnects, connection(3), at_ns=2 * S)
    assert (first.previous, first.candidates) == (None, (1, 2))
    assert first.is_reconnect
    second = one(reconnects, connection(4), at_ns=3 * S)
    assert (second.previous, second.candidates) == (None, (1, 2))
    # Both candidates are used up: the next loss on this host is unambiguous again.
    assert not one(reconnects, connection(5), at_ns=4 * S).is_reconnect
    reconnects.lost(connection(4), at_ns=5 * S)
    assert one(reconnects, connection(6), at_ns=6 * S).previous == 4


def test_slaves_of_one_host_lost_one_after_the_other_are_joined():
    reconnects = Reconnects()
    for lost, new in ((1, 11), (2, 12), (3, 13), (11, 21)):
        reconnects.lost(connection(lost), at_ns=lost * S)
        assert one(reconnects, connection(new), at_ns=lost * S + 1).previous == lost


def test_one_lost_connection_that_two_new_ones_of_a_moment_could_continue_is_joined_to_neither():
    reconnects = Reconnects()
    reconnects.lost(connection(1), at_ns=0)
    arrivals = reconnects.came([connection(2), connection(3)], at_ns=S)
    assert [arrival.previous for arrival in arrivals] == [None, None]
    # One of them came back, the other is new, and which is which is not known.
    assert sum(arrival.is_reconnect for arrival in arrivals) == 1


def test_two_lost_and_two_new_of_one_moment_count_as_two_reconnects():
    reconnects = Reconnects()
    for key in (1, 2):
        reconnects.lost(connection(key), at_ns=0)
    arrivals = reconnects.came([connection(3), connection(4)], at_ns=S)
    assert [arrival.previous for arrival in arrivals] == [None, None]
    assert [arrival.candidates for arrival in arrivals] == [(1, 2), (1, 2)]
    assert not one(reconnects, connection(5), at_ns=2 * S).is_reconnect


def test_identity_joins_from_any_host_and_behind_nat():
    reconnects = Reconnects()
    reconnects.lost(connection(1, "203.0.113.1", identity="slave-a"), at_ns=0)
    reconnects.lost(connection(2, "203.0.113.1", identity="slave-b"), at_ns=0)
    arrivals = reconnects.came(
        [
            connection(3, "203.0.113.1", identity="slave-b"),
            connection(4, "198.51.100.7", identity="slave-a"),
        ],
        at_ns=S,
    )
    assert [arrival.previous for arrival in arrivals] == [2, 1]


def test_different_identities_are_never_joined():
    reconnects = Reconnects()
    reconnects.lost(connection(1, identity="slave-a", port=50_000), at_ns=0)
    assert not one(reconnects, connection(2, identity="slave-b", port=50_000), at_ns=S).is_reconnect
    assert one(reconnects, connection(3, identity="slave-a"), at_ns=2 * S).previous == 1


def test_identity_is_joined_before_a_connection_of_the_same_host_without_one():
    reconnects = Reconnects()
    reconnects.lost(connection(1, identity="slave-a"), at_ns=0)
    arrivals = reconnects.came([connection(2), connection(3, identity="slave-a")], at_ns=S)
    assert [(arrival.previous, arrival.is_reconnect) for arrival in arrivals] == [(None, False), (1, True)]


def test_connection_without_a_known_identity_may_be_the_lost_one_of_its_host():
    reconnects = Reconnects()
    reconnects.lost(connection(1, identity="slave-a"), at_ns=0)
    assert one(reconnects, connection(2), at_ns=S).previous == 1
    reconnects.lost(connection(2), at_ns=2 * S)
    assert one(reconnects, connection(3, identity="slave-a"), at_ns=3 * S).previous == 2


def test_two_lost_ones_of_one_identity_are_ambiguous():
    reconnects = Reconnects()
    for key in (1, 2):
        reconnects.lost(connection(key, f"10.0.0.{key}", identity="shared"), at_ns=0)
    arrival = one(reconnects, connection(3, "10.0.0.1", identity="shared"), at_ns=S)
    assert (arrival.previous, arrival.candidates) == (None, (1, 2))


def test_slave_that_left_long_ago_does_not_make_the_return_of_another_uncertain():
    reconnects = Reconnects()
    reconnects.lost(connection(1), at_ns=0)
    reconnects.lost(connection(2), at_ns=FRESH_NS)
    assert one(reconnects, connection(3), at_ns=FRESH_NS + 1).previous == 2
    reconnects.lost(connection(3), at_ns=FRESH_NS + 2)
    # The first one is still remembered.
    assert one(reconnects, connection(4), at_ns=FRESH_NS + 3).previous == 3
    assert one(reconnects, connection(5), at_ns=FRESH_NS + 4).previous == 1


def test_half_open_connection_that_ends_late_does_not_spoil_later_reconnects():
    spans = [
        Span(connection(1), 0, 20 * S),
        # Came back before the master noticed that the first one was dead.
        Span(connection(2), 5 * S, 4000 * S),
        Span(connection(3), 4001 * S, None),
    ]
    assert [arrival.previous for arrival in pair(spans)] == [None, None, 2]


def test_connections_of_unknown_address_are_joined_by_identity_only():
    reconnects = Reconnects()
    reconnects.lost(Connection(1, ""), at_ns=0)
    reconnects.lost(Connection(2, "", "slave-a"), at_ns=0)
    assert not one(reconnects, Connection(3, ""), at_ns=S).is_reconnect
    assert one(reconnects, Connection(4, "", "slave-a"), at_ns=S).previous == 2


def test_hosts_of_ipv6_and_names_without_a_port():
    assert Connection(1, "[fe80::1]:10912").host == "[fe80::1]"
    assert Connection(1, "slave-1").host == "slave-1"
    assert Connection(1, "").host == ""


def test_forgotten_connection_is_no_candidate():
    reconnects = Reconnects()
    reconnects.lost(connection(1), at_ns=0)
    reconnects.forget(1)
    reconnects.forget(7)
    assert not one(reconnects, connection(2), at_ns=S).is_reconnect


def test_lost_connections_of_a_host_are_bounded():
    reconnects = Reconnects()
    for key in range(2 * LOST_PER_HOST_MAX):
        reconnects.lost(connection(key), at_ns=key)
    arrival = one(reconnects, connection(1000), at_ns=1000)
    assert arrival.candidates == tuple(range(LOST_PER_HOST_MAX, 2 * LOST_PER_HOST_MAX))


def test_spans_are_paired_in_the_order_of_time_whatever_their_order():
    spans = [
        Span(connection(3), 30 * S, None),
        Span(connection(1), 0, 10 * S),
        Span(connection(2), 20 * S, 25 * S),
        Span(connection(9, "10.0.0.9"), 1 * S, None),
    ]
    assert [(arrival.connection.key, arrival.previous) for arrival in pair(spans)] == [
        (1, None),
        (9, None),
        (2, 1),
        (3, 2),
    ]


def test_slave_of_the_same_host_that_came_while_another_was_away_is_ambiguous_later():
    # A and B of one host; both are away when a connection comes, and B's comes next.
    spans = [
        Span(connection(1), 0, 10 * S),
        Span(connection(2), 0, 11 * S),
        Span(connection(3), 12 * S, None),
        Span(connection(4), 13 * S, None),
    ]
    assert [arrival.candidates for arrival in pair(spans)] == [(), (), (1, 2), (1, 2)]


def test_connection_that_ends_in_the_moment_in_which_it_comes_does_not_continue_itself():
    for lost_ns in (5, 4):
        assert pair([Span(connection(1), 5, lost_ns)]) == [Arrival(connection(1))]
    spans = [Span(connection(1), 5, 5), Span(connection(2), 6, None)]
    assert [arrival.previous for arrival in pair(spans)] == [None, 1]


def test_probes_between_change_nothing_as_they_are_left_out():
    slave = [Span(connection(1), 0, 100 * S), Span(connection(2), 101 * S, None)]
    probes = [Span(connection(10 + second), second * S, second * S + 1) for second in range(103)]
    with_probes = pair([*slave, *probes])
    # With probes the slave would be ambiguous.
    assert next(arrival for arrival in with_probes if arrival.connection.key == 2).previous != 1
    assert [arrival.previous for arrival in pair(slave)] == [None, 1]


def test_a_replica_is_its_connections_with_an_outage_after_each_that_ended():
    found = replicas(
        [
            Span(connection(1), 0, 10 * S),
            Span(connection(2, "10.0.0.3"), 0, None),
            Span(connection(3), 27 * S, 40 * S),
        ],
        end_ns=50 * S,
    )
    assert [(one.connections, one.reconnects, one.outages) for one in found] == [
        ([1, 3], 1, [Outage(1, 10 * S, 27 * S, next=3), Outage(3, 40 * S, 50 * S)]),
        ([2], 0, []),
    ]


def test_an_outage_ends_when_the_replica_is_forgotten():
    (replica,) = replicas([Span(connection(1), 0, 10 * S)], end_ns=10_000 * S)
    assert replica.outages == [Outage(1, 10 * S, 10 * S + LOST_NS)]
    # Two of one host were away, and two came back: which is which is not known.
    spans = [
        *(Span(connection(key), 0, 10 * S) for key in (1, 2)),
        *(Span(connection(key), key * S * 10, None) for key in (3, 4)),
    ]
    found = replicas(spans, end_ns=100 * S)
    assert [(one.connections, one.reconnects, one.outages) for one in found] == [
        ([1], 0, [Outage(1, 10 * S, 40 * S)]),
        ([2], 0, [Outage(2, 10 * S, 40 * S)]),
        ([3], 1, []),
        ([4], 1, []),
    ]
