"""Preparing what comes next in the background, while the devices compute."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_END = object()


class Prefetched(Generic[_Item]):
    """Iterates over an iterator whose next items are made ahead of time on another thread.

    No thread waits for the consumer: each item taken asks for one more. So an abandoned one costs nothing. Only the
    executor uses `items` from now on; it has a single thread, so that items are made in their order. At most `depth`
    are ready and not yet taken.
    """

    def __init__(self, items: Iterator[_Item], executor: Executor, depth: int) -> None:
        self._items, self._executor = items, executor
        self._pending: deque[Future] = deque()
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        self._pending.append(self._executor.submit(next, self._items, _END))

    def __iter__(self) -> Iterator[_Item]:
        """Yield the items in their order; what making one raises is raised here."""
        while (item := self._pending.popleft().result()) is not _END:
            self._ask()
            yield item
