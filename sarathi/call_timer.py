"""Where time goes by the names of calls: chosen methods are replaced by timed ones while somebody asks, and only then.

It knows nothing of what it times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sarathi.clock import host_time

_ABSENT = object()


class CallTimer:
    """Seconds by name, each call's own: what timed calls inside it take is theirs. For one thread.

    A timed call costs about a microsecond, which counts for the call around it.

    Args:
        now: seconds of a clock; of a device that runs behind its calls, once it has caught up.
    """

    def __init__(self, now: Callable[[], float] = host_time) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._inside = 0.0  # seconds of the timed calls that the running one has made
        self._undo: list[tuple[Any, str, object]] = []

    def time(self, owner: Any, method: str, name: str) -> None:
        """Time `owner.method`, of an object or of a class, under a name that several may share."""
        call, now, seconds = getattr(owner, method), self._now, self._seconds
        seconds.setdefault(name, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            around, self._inside = self._inside, 0.0
            started = now()
            try:
                return call(*args, **kwargs)
            finally:
                spent = now() - started
                seconds[name] += spent - self._inside
                self._inside = around + spent

        self._undo.append((owner, method, vars(owner).get(method, _ABSENT)))
        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """What has gathered since the last time, every name that is timed, in the order of `time`."""
        taken = dict(self._seconds)
        self._seconds.update(dict.fromkeys(taken, 0.0))
        return taken

    def stop(self) -> None:
        """Leave every object as it was."""
        while self._undo:
            owner, method, previous = self._undo.pop()
            if previous is _ABSENT:
                delattr(owner, method)
            else:
                setattr(owner, method, previous)
