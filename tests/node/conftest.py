"""Nodes on disks that fail."""

from functools import partial

import pytest

from tests.faults import disks


@pytest.fixture
def fault(tmp_path):
    """What it says fails on the disks of shimmed nodes."""
    return tmp_path / "fault"


@pytest.fixture
def shimmed(start_node, fault):
    """Starts a node on such a disk."""
    return partial(start_node, program=disks.program(fault))
