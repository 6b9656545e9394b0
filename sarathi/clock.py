"""The only module that reads time, besides workers that measure a model's own run.

Engine code asks a `Clock`. In virtual time waiting is what moves the clock, and nothing else does.
"""

from __future__ import annotations

import time
from typing import Protocol


def host_time() -> float:
    """Seconds of the host's monotonic timer: what our own code costs, in virtual time too."""
    return time.perf_counter()


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the clock was made."""
        ...

    def sleep_until(self, instant: float) -> None:
        """Return at `instant` (seconds); at once if it has passed."""
        ...


class WallClock:
    """Real time, from 0 at construction or the last restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def sleep_until(self, instant: float) -> None:
        delay = instant - self.now()
        if delay > 0:
            time.sleep(delay)


class VirtualClock:
    """Simulated time, from 0; `sleep_until` moves it."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep_until(self, instant: float) -> None:
        if instant > self._now:
            self._now = instant


def calendar_stamp() -> str:
    """Local date and time to the microsecond, fit for the name of a run's folder."""
    seconds = time.time()
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(seconds))}-{int(seconds % 1 * 1e6):06d}"
