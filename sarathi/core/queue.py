"""The prefill queue: requests by ascending key, with removal in O(1). It knows no policy and no budget.

Two heaps (waiting requests, partly computed prompts) that are read as one ordered queue, because a round
may have to stop admitting waiting requests while it still serves the partial ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from sarathi.request import Request

# [key, arrival_time, sequence number, request or None once removed]; the number is unique, so that
# comparison never reaches the request.
Entry = list


class RequestHeap:
    """A heap whose removed entries stay until they surface, or until they are the greater half."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._num_removed = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_removed

    def __iter__(self) -> Iterator[Request]:
        """Live requests in no particular order."""
        return (entry[3] for entry in self._heap if entry[3] is not None)

    def push(self, request: Request, key: float) -> None:
        entry = [key, request.arrival_time, request.sequence_number, request]
        request.queue_entry = entry
        heapq.heappush(self._heap, entry)

    def head(self) -> Entry | None:
        """The first live entry, left in place."""
        heap = self._heap
        while heap:
            if heap[0][3] is not None:
                return heap[0]
            heapq.heappop(heap)
            self._num_removed -= 1
        return None

    def pop(self) -> Request:
        """Remove and return the first live request; `head` must have found one."""
        request = heapq.heappop(self._heap)[3]
        request.queue_entry = None
        return request

    def remove(self, request: Request) -> None:
        """Remove from anywhere: O(1) amortised."""
        assert request.queue_entry is not None
        request.queue_entry[3] = None
        request.queue_entry = None
        self._num_removed += 1
        if self._num_removed > 64 and self._num_removed * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[3] is not None]
            self._num_removed = 0
            heapq.heapify(self._heap)

    def rekey(self, key: Callable[[Request], float]) -> None:
        """Recompute every key: O(n)."""
        self._heap = [entry for entry in self._heap if entry[3] is not None]
        self._num_removed = 0
        for entry in self._heap:
            entry[0] = key(entry[3])
        heapq.heapify(self._heap)
