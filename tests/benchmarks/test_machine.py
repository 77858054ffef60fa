"""What the benchmarks do to the machine before they measure."""

import os
import signal
import subprocess
import sys

import pytest

from tests.benchmarks.rivals.machine import FILL_BYTES, running, standing_still, use_memory


def changed_by(process: subprocess.Popen, change: int) -> int:
    """Wait until the process has stopped (WSTOPPED) or gone on (WCONTINUED); by which signal it did."""
    return os.waitid(os.P_PID, process.pid, change).si_status


@pytest.mark.timeout(20)
def test_processes_stand_still_until_the_block_ends_however_it_ends():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:

        def interrupted() -> None:
            with standing_still([process.pid]):
                assert changed_by(process, os.WSTOPPED) == signal.SIGSTOP
                raise InterruptedError

        try:
            with pytest.raises(InterruptedError):
                interrupted()
            assert changed_by(process, os.WCONTINUED) == signal.SIGCONT
            with standing_still([process.pid]):
                changed_by(process, os.WSTOPPED)
                with running([process.pid]):
                    assert changed_by(process, os.WCONTINUED) == signal.SIGCONT
                assert changed_by(process, os.WSTOPPED) == signal.SIGSTOP
        finally:
            process.kill()


def test_memory_is_used_through_a_file_of_which_nothing_is_left(tmp_path, monkeypatch):
    filled = []

    class Memory:
        def __init__(self, fd, length):
            filled.append(length)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def __setitem__(self, part, data):
            assert part.stop - part.start == len(data)
            filled.append(len(data))

    with monkeypatch.context() as patch:
        patch.setattr("mmap.mmap", Memory)
        use_memory(tmp_path, 2 * FILL_BYTES + 5)
    assert filled == [2 * FILL_BYTES + 5, FILL_BYTES, FILL_BYTES, 5]
    use_memory(tmp_path, 2 * FILL_BYTES + 5)
    assert not list(tmp_path.iterdir())
