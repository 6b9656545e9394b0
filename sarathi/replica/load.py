"""What a replica has been given and has not done, as whoever routes requests can know it from outside.

Fed with three events a request, which a simulated replica and one in another process can tell alike: it was sent, its
first token came, it ended. Knows no engine and reads no clock.
"""

from __future__ import annotations

FORGETTING = 0.99  # weight that the measured pace keeps with each request begun: the last hundred or so count


class ReplicaLoad:
    """Counters of one replica. A request counts with its tokens: prompt, and output up to what it may generate."""

    def __init__(self) -> None:
        self.outstanding_tokens = 0  # of requests sent and not ended
        self.backlog_tokens = 0  # of those without a first token
        self._requests: dict[str, tuple[int, bool]] = {}  # by id: tokens, and whether they are in the backlog
        self._backlog_since = 0.0  # when the first of the backlog could begin, seconds
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def pace(self) -> float | None:
        """Tokens of requests that left the backlog, per second in which there was one; None before the first."""
        return self._tokens / self._seconds if self._seconds > 0 else None

    def on_sent(self, request_id: str, num_tokens: int, now: float) -> None:
        """`num_tokens`: its prompt and what it may generate; `now`: seconds of the clock that arrivals are told in."""
        if not self.backlog_tokens:
            self._backlog_since = now
        self._requests[request_id] = num_tokens, True
        self.outstanding_tokens += num_tokens
        self.backlog_tokens += num_tokens

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its prompt is computed, for the first time."""
        num_tokens, _ = self._requests[request_id]
        self._requests[request_id] = num_tokens, False
        self.backlog_tokens -= num_tokens
        self._tokens = FORGETTING * self._tokens + num_tokens
        self._seconds = FORGETTING * self._seconds + now - self._backlog_since
        self._backlog_since = now

    def on_end(self, request_id: str) -> None:
        """It finished, was aborted or refused."""
        num_tokens, is_in_backlog = self._requests.pop(request_id)
        self.outstanding_tokens -= num_tokens
        if is_in_backlog:
            self.backlog_tokens -= num_tokens
