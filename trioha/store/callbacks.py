"""Callbacks of parts that may end before the store does: a node's parts end with its role."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Callbacks(Generic[P]):
    """Calls all callbacks, in the order in which they came.

    A bound method does not keep its object: a part that has ended and is collected is called no more.
    """

    def __init__(self) -> None:
        self._references: list[Callable[[], Callable[P, object] | None]] = []

    def add(self, callback: Callable[P, object]) -> None:
        """Call `callback`, too, from now on."""
        self._references = [reference for reference in self._references if reference() is not None]
        if isinstance(callback, MethodType):
            self._references.append(weakref.WeakMethod(callback))
        else:
            self._references.append(lambda: callback)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Remove at the end of the block the callbacks that came in it."""
        before = self._references
        self._references = [*before]
        try:
            yield
        finally:
            self._references = before

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> None:
        """Call all of them."""
        for reference in self._references:
            if (callback := reference()) is not None:
                callback(*arguments, **options)
