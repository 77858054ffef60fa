"""The fields of a subscription to updates."""

import pytest

from trioha.remoting.command import BadRequestError
from trioha.remoting.status_subscription import COUNT_MAX, EVERY_MS_MAX, EVERY_MS_MIN, StatusSubscription


def test_fields_are_parsed_as_they_were_written():
    assert StatusSubscription.of(StatusSubscription(100, 20).to_fields()) == StatusSubscription(100, 20)


def test_a_request_without_the_fields_is_no_subscription():
    assert StatusSubscription.of({"brokerName": "b"}) is None


@pytest.mark.parametrize(
    ("every_ms", "count", "promised"),
    [
        ("0", "5", StatusSubscription(EVERY_MS_MIN, 5)),
        ("1", "1000000", StatusSubscription(EVERY_MS_MIN, COUNT_MAX)),
        ("999999999", "0", StatusSubscription(EVERY_MS_MAX, 0)),
    ],
)
def test_values_outside_the_limits_become_the_limits(every_ms, count, promised):
    assert StatusSubscription.of({"triohaEveryMillis": every_ms, "triohaUpdates": count}) == promised


@pytest.mark.parametrize("text", ["", "-1", "1.5", "ten", "\u0663", "9" * 10, "9" * 10_000])
@pytest.mark.parametrize("name", ["triohaEveryMillis", "triohaUpdates"])
def test_a_field_that_is_not_a_whole_number_is_refused_by_name(name, text):
    fields = {"triohaEveryMillis": "100", "triohaUpdates": "20"} | {name: text}
    with pytest.raises(BadRequestError, match=f"{name} is not a whole number"):
        StatusSubscription.of(fields)


def test_a_single_field_is_refused():
    with pytest.raises(BadRequestError, match="triohaUpdates is not a whole number"):
        StatusSubscription.of({"triohaEveryMillis": "100"})
