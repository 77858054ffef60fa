"""Blocks that were freed, in a process of their own."""

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from trioha.node.allocator import give_back_large_blocks

def resident_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

print(give_back_large_blocks())
before_kb = resident_kb()
kept = []
for _ in range(5):
    frames = [bytearray(16 << 20) for _ in range(2)]
    # What outlives the frames lies behind them.
    kept.append(bytearray(4096))
    del frames
print(resident_kb() - before_kb)
"""
HELD_KB_MAX = 4096
READS = """
import resource
from trioha.node.allocator import give_back_large_blocks

print(give_back_large_blocks())
for size in (256 << 10, 1 << 20):
    for reads in (1, 200):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(reads):
            bytes(bytearray(size))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
FAULTS_MAX = 200
"""Of 200 times two blocks of 64 or 256 pages each."""


def said_by(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_memory_of_large_frames_is_given_back():
    is_set, held_kb = said_by(PROGRAM).split()
    if is_set == "False":
        pytest.skip("this C library decides by itself")
    assert int(held_kb) < HELD_KB_MAX


def test_the_memory_of_frames_and_reads_is_used_again():
    is_set, *faults = said_by(READS).split()
    if is_set == "False":
        pytest.skip("this C library decides by itself")
    assert max(map(int, faults)) < FAULTS_MAX
