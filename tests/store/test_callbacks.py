"""Callbacks of parts that end before the store."""

import gc

from trioha.store.callbacks import Callbacks


class Room:
    def __init__(self, calls, name):
        self._calls = calls
        self._name = name

    def note(self, offset):
        self._calls.append((self._name, offset))


def test_all_that_live_are_called_in_order_and_none_is_kept_alive():
    calls = []
    callbacks = Callbacks()
    rooms = [Room(calls, "first"), Room(calls, "second")]
    for room in rooms:
        callbacks.add(room.note)
    callbacks.add(lambda offset: calls.append(("plain", offset)))
    callbacks(7)
    assert calls == [("first", 7), ("second", 7), ("plain", 7)]
    del rooms[0], room
    gc.collect()
    calls.clear()
    callbacks(8)
    assert calls == [("second", 8), ("plain", 8)]
