"""The division of descriptors, and the gate for connections."""

import os
import resource

import pytest

from trioha.net import descriptors
from trioha.net.descriptors import (
    COUNT_INTERVAL_S,
    DescriptorGate,
    Share,
    TooFewDescriptors,
    descriptor_limit,
    divide,
    lowest_free_descriptor,
    open_descriptors,
    raise_descriptor_limit,
)

CLIENTS = Share("clients", 1000, (200, 10))
QUEUES = Share("queues", 250, (60, 8))


@pytest.mark.parametrize(
    ("limit", "granted"),
    [
        (5000, (1000, 250)),
        (1300, (1000, 250)),
        (1299, (999, 250)),
        (500, (200, 250)),
        (499, (200, 249)),
        (310, (200, 60)),
        (309, (199, 60)),
        (120, (10, 60)),
        (119, (10, 59)),
        (68, (10, 8)),
    ],
)
def test_shares_are_lowered_in_their_order_and_no_further_than_necessary(limit, granted):
    division = divide(limit, needed=50, shares=[CLIENTS, QUEUES])
    assert division.granted == granted
    assert sum(granted) + 50 <= limit
    assert division.lowered == tuple(
        f"{share.name} from {share.wanted} to {got}"
        for share, got in zip((CLIENTS, QUEUES), granted, strict=True)
        if got < share.wanted
    )


def test_a_limit_that_is_too_low_is_reported_with_the_least_one():
    with pytest.raises(TooFewDescriptors) as refused:
        divide(67, needed=50, shares=[CLIENTS, QUEUES])
    assert refused.value.least == 68


def test_a_share_that_wants_less_than_its_floor_gets_what_it_wants():
    small = Share("clients", 5, (200, 10))
    assert divide(63, needed=50, shares=[small, QUEUES]).granted == (5, 8)


def test_the_soft_limit_is_raised_to_the_hard_one_at_most(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, hard - 10, 1000) if hard != resource.RLIM_INFINITY else min(soft, 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(descriptors, "DESCRIPTORS_MAX", lower + 10)
            assert raise_descriptor_limit() == lower + 10
        assert descriptor_limit() == lower + 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_system_that_refuses_a_higher_limit_leaves_the_lower_one(monkeypatch):
    def refuse(_which, _limits):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit() == 256


def test_the_next_descriptor_and_the_count_are_those_of_the_kernel():
    first = os.open(os.devnull, os.O_RDONLY)
    expected = lowest_free_descriptor(first)
    before = open_descriptors(descriptor_limit())
    second = os.open(os.devnull, os.O_RDONLY)
    after = open_descriptors(descriptor_limit())
    below = open_descriptors(second)
    os.close(second)
    os.close(first)
    assert second == expected
    assert before is not None
    assert after == before + 1
    assert below is not None
    assert below <= before


def test_a_gate_counts_descriptors_twice_a_second_and_checks_the_next_number_always():
    now_s = 0.0
    lowest: int | None = 5
    counted = 79
    counts = []

    def count(limit):
        counts.append(limit)
        return counted

    gate = DescriptorGate(
        keep=20, limit=100, lowest_free=lambda _: lowest, count_open=count, clock=lambda: now_s
    )
    assert gate.is_open(0)
    counted = 80
    assert gate.is_open(0)
    now_s = COUNT_INTERVAL_S
    # Low numbers are free, but too many high ones are in use.
    assert not gate.is_open(0)
    assert counts == [100, 100]
    now_s, counted, lowest = 2 * COUNT_INTERVAL_S, 10, 79
    assert gate.is_open(0)
    lowest = 80
    assert not gate.is_open(0)
    lowest = None
    assert not gate.is_open(0)
    assert "20 of 100" in gate.describe()


def test_a_gate_works_without_a_list_of_descriptors():
    lowest = 79
    gate = DescriptorGate(keep=20, limit=100, lowest_free=lambda _: lowest, count_open=lambda _: None)
    assert gate.is_open(0)
    lowest = 80
    assert not gate.is_open(0)
