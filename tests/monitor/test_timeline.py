"""The timeline is bounded, and a noisy node does not crowd out others."""

from trioha_monitor.timeline import BURST_MAX, REFILL_MS, Timeline
from trioha_monitor.view import EventKind


def test_a_noisy_node_drops_its_own_events_only():
    timeline = Timeline(events_max=100)
    timeline.add(EventKind.NODE, "quiet", at_ms=0, node="a", source="10.0.0.1:1")
    timeline.add(EventKind.CLOCK, "of no node", at_ms=0)
    for number in range(500):
        timeline.add(EventKind.PUTS, f"noise {number}", at_ms=number, node="a", source="10.0.0.2:1")
    texts = [event.text for event in timeline.freeze()]
    assert texts == ["quiet", "of no node", *(f"noise {number}" for number in range(402, 500))]
    assert timeline.freeze()[-1].number == 502


def test_too_many_events_of_a_node_are_dropped_and_counted():
    timeline = Timeline()
    for _ in range(BURST_MAX + 50):
        timeline.add(EventKind.PUTS, "noise", at_ms=1000, node="a", source="10.0.0.2:1")
    assert len(timeline.freeze()) == BURST_MAX
    timeline.add(EventKind.PUTS, "later", at_ms=1000 + REFILL_MS, node="a", source="10.0.0.2:1")
    assert [(event.kind, event.text) for event in timeline.freeze()[-2:]] == [
        (EventKind.MARK, "50 events of this node were left out: too many at once"),
        (EventKind.PUTS, "later"),
    ]


def test_events_of_other_nodes_are_listed_meanwhile():
    timeline = Timeline()
    for _ in range(BURST_MAX + 50):
        timeline.add(EventKind.PUTS, "noise", at_ms=1000, node="a", source="10.0.0.2:1")
    timeline.add(EventKind.PUTS, "mine", at_ms=1000, node="a", source="10.0.0.3:1")
    assert timeline.freeze()[-1].text == "mine"
