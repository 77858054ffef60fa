"""What the benchmarks do to the machine before they measure."""

from tests.benchmarks.rivals.machine import FILL_BYTES, use_memory


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
