"""The timer of calls: what is a call's own time, and that nothing of it stays."""

from __future__ import annotations

import pytest

from sarathi.call_timer import CallTimer


class Clockwork:
    """Calls that take what they say."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def inner(self, seconds: float) -> None:
        self.now += seconds

    def outer(self, seconds: float) -> str:
        self.inner(seconds)
        self.now += 1.0
        self.inner(seconds)
        return "done"

    def failing(self) -> None:
        self.inner(2.0)
        raise OSError


def test_a_call_owns_its_time_without_that_of_timed_calls_inside() -> None:
    work = Clockwork()
    timer = CallTimer(work.read)
    timer.time(work, "inner", "inner")
    timer.time(work, "outer", "outer")
    timer.time(work, "failing", "failing")
    assert work.outer(0.25) == "done"
    work.inner(8.0)
    with pytest.raises(OSError, match=r"^$"):
        work.failing()
    assert timer.take() == {"inner": 0.5 + 8.0 + 2.0, "outer": 1.0, "failing": 0.0}
    assert timer.take() == {"inner": 0.0, "outer": 0.0, "failing": 0.0}
    timer.stop()
    assert vars(work).keys() == {"now"}
    work.outer(1.0)
    assert timer.take()["outer"] == 0.0


def test_a_class_can_be_timed_and_is_left_as_it_was() -> None:
    before, work = Clockwork.__dict__["inner"], Clockwork()
    timer = CallTimer(work.read)
    timer.time(Clockwork, "inner", "inner")
    work.inner(3.0)
    timer.stop()
    assert timer.take() == {"inner": 3.0}
    assert Clockwork.__dict__["inner"] is before
