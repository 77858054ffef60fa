"""CPU quotas of control groups, read from files as the kernel shows them."""

import math
import os

import pytest

from trioha.net import busy_poll
from trioha.net.busy_poll import has_cores_to_spare
from trioha.net.cpu_quota import cpu_quota

V2 = "31 23 0:27 {top} {mount} ro,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "36 32 0:33 {top} {mount} ro,nosuid shared:13 - cgroup cgroup rw,cpu,cpuacct"
SETS = "37 32 0:34 {top} {mount}/sets ro,nosuid shared:14 - cgroup cgroup rw,cpuset"
DISK = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw"


class Machine:
    """The files of a process under `/proc`, and a hierarchy of groups."""

    def __init__(self, folder, *, name="cgroup"):
        self.proc = folder / "proc"
        self.mount = folder / name
        self.proc.mkdir()
        self.mount.mkdir()

    def quota(self, mounts, groups, *, top="/"):
        mount = str(self.mount).replace(" ", r"\040")
        lines = [line.format(top=top, mount=mount) for line in mounts]
        (self.proc / "mountinfo").write_text("\n".join([*lines, ""]))
        (self.proc / "cgroup").write_text(groups)
        return cpu_quota(self.proc)

    def group(self, path, **files):
        """A group with these files; `_` in their names is a point."""
        (self.mount / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.mount / path / name.replace("_", ".", 1)).write_text(text)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("limit", "cores"), [("150000 100000\n", 1.5), ("50000 100000\n", 0.5), ("max 100000\n", math.inf)]
)
def test_a_container_of_version_2_is_the_top_of_its_own_hierarchy(machine, limit, cores):
    machine.group(".", cpu_max=limit)
    assert machine.quota([DISK, V2], "0::/\n") == cores


def test_the_least_limit_of_all_groups_above_counts(machine):
    machine.group("system.slice", cpu_max="100000 100000\n")
    machine.group("system.slice/broker.service", cpu_max="400000 100000\n")
    machine.group("system.slice/broker.service/sub", cpu_max="max 100000\n")
    machine.group("other.slice", cpu_max="1000 100000\n")
    assert machine.quota([DISK, V2], "0::/system.slice/broker.service/sub\n") == 1.0


@pytest.mark.parametrize(("quota", "cores"), [("250000\n", 2.5), ("-1\n", math.inf)])
def test_version_1_has_quota_and_period_in_two_files(machine, quota, cores):
    machine.group("brokers", cpu_cfs_quota_us=quota, cpu_cfs_period_us="100000\n")
    assert machine.quota([SETS, V1], "5:cpuset:/\n4:cpu,cpuacct:/brokers\n") == cores


def test_a_container_that_sees_the_groups_of_its_host_has_its_own_at_the_top(machine):
    machine.group(".", cpu_cfs_quota_us="100000\n", cpu_cfs_period_us="50000\n")
    # Another group of the same name, within the container.
    machine.group("docker/0a1b", cpu_cfs_quota_us="1\n", cpu_cfs_period_us="50000\n")
    assert machine.quota([V1], "4:cpu,cpuacct:/docker/0a1b\n", top="/docker/0a1b") == 2.0


@pytest.mark.parametrize("path", ["/../elsewhere", "/docker/0a1bc"])
def test_a_process_outside_of_what_is_mounted_has_the_limit_of_the_top(machine, path):
    machine.group(".", cpu_max="200000 100000\n")
    assert machine.quota([V2], f"0::{path}\n", top="/docker/0a1b") == 2.0


def test_with_both_versions_mounted_the_one_that_limits_cpu_time_counts(machine):
    machine.group(".", cpu_cfs_quota_us="90000\n", cpu_cfs_period_us="100000\n")
    unified = V2.replace("{mount}", "{mount}/unified")
    machine.group("unified/init.scope")
    assert machine.quota([unified, SETS, V1], "4:cpu,cpuacct:/\n0::/init.scope\n") == 0.9


def test_a_mount_point_may_have_blanks(tmp_path):
    machine = Machine(tmp_path, name="control groups")
    machine.group(".", cpu_max="300000 100000\n")
    assert machine.quota([V2], "0::/\n") == 3.0


@pytest.mark.parametrize(
    ("limit", "groups"),
    [
        ("", "0::/\n"),
        ("many 100000\n", "0::/\n"),
        ("100000 0\n", "0::/\n"),
        ("0 100000\n", "0::/\n"),
        ("100000 100000\n", "a line of another kind\n"),
        ("100000 100000\n", "4:cpu:/\n"),
        ("100000 100000\n", ""),
    ],
)
def test_what_cannot_be_read_is_no_limit(machine, limit, groups):
    machine.group(".", cpu_max=limit)
    assert machine.quota([V2], groups) == math.inf


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cpu_quota(tmp_path / "no such folder") == math.inf


def test_the_quota_is_read_once(machine):
    machine.group(".", cpu_max="150000 100000\n")
    assert machine.quota([V2], "0::/\n") == 1.5
    machine.group(".", cpu_max="400000 100000\n")
    assert machine.quota([V2], "0::/\n") == 1.5


@pytest.mark.parametrize(
    ("cores", "quota", "has_some"),
    [
        (1, math.inf, False),
        (2, math.inf, True),
        (64, 1.0, False),
        (64, 0.5, False),
        (64, 1.5, True),
        (1, 2.0, False),
    ],
)
def test_a_process_has_cores_to_spare_with_more_than_one_by_affinity_and_quota(
    monkeypatch, cores, quota, has_some
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(busy_poll, "cpu_quota", lambda: quota)
    assert has_cores_to_spare() is has_some
