"""Counts of replicas that are kept between acks are those of a new count, whatever happened meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from trioha.ha.meter import LagClock
from trioha.ha.replicas import Replicas

GAP_BYTES_MAX = 100
UNACKED_S_MAX = 15.0

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.integers(0, 2), st.sampled_from([0, 10, 40, 1000])),
        st.tuples(st.just("ack"), st.integers(0, 5), st.sampled_from([1, 10, 1000])),
        st.tuples(st.just("end"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("append"), st.integers(1, 60), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 1, 14, 15, 16]), st.just(0)),
        st.tuples(st.just("count"), st.sampled_from([0, 0, 0, 5, 60, -60]), st.just(0)),
    ),
    min_size=8,
    max_size=60,
)


@given(steps=STEPS)
def test_kept_counts_are_those_of_a_new_count(steps):
    replicas = Replicas(gap_bytes_max=GAP_BYTES_MAX, unacked_s_max=UNACKED_S_MAX)
    clocks = {}
    now_s, max_offset, ids = 0.0, 50, 0

    def report(number, offset, *, is_claim=False):
        replica, clock, _ = clocks[number]
        clocks[number] = replica, clock, offset
        clock.acknowledged(offset)
        replicas.acknowledge(
            number,
            replica=replica,
            ack_offset=offset,
            lag_clock=clock,
            has_unsent=is_claim and offset < max_offset,
            now_s=now_s,
        )

    for what, first, second in steps:
        if what == "connect":
            ids += 1
            clock = LagClock()
            clocks[ids] = f"replica-{first}", clock, 0
            clock.appended(max_offset, now_s)
            report(ids, min(second, max_offset), is_claim=True)
        elif what in {"ack", "end"} and clocks:
            number = sorted(clocks)[first % len(clocks)]
            if what == "end":
                del clocks[number]
                replicas.forget(number)
            else:
                report(number, min(clocks[number][2] + second, max_offset))
        elif what == "append":
            max_offset += first
            for _, clock, _ in clocks.values():
                clock.appended(max_offset, now_s)
        elif what == "wait":
            now_s += first
        elif what == "count":
            end_offset = max(0, max_offset + first)
            eligible = [
                one for one in replicas._connections.values() if replicas._is_eligible(one, end_offset, now_s)
            ]
            assert replicas.eligible_count(end_offset, now_s) == len({one.replica for one in eligible})
            assert replicas.in_sync_count(end_offset, now_s) == len(
                {one.replica for one in eligible if one.has_acked}
            )
