"""Dates and times as text, in the spellings that traces use; a time without a zone is one of UTC.

Knows nothing of files and settings.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, date, datetime, timedelta

from sarathi.csv_columns import parse_number
from sarathi.errors import shown

DAY = 86_400  # seconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (date.max.toordinal() - _EPOCH.toordinal()) * DAY
_DATE_AND_TIME = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(?::([0-5]\d(?:\.\d*)?))?\s*(Z|[+-]\d\d:?[0-5]\d)?)?\s*", re.ASCII
)
_DAY = re.compile(r"\s*\d{4}-\d\d-\d\d\s*", re.ASCII)


def parse_instant(text: str) -> tuple[int, float]:
    """(days after 1970-01-01, seconds of that day) of `2023-11-16 18:17:03.9799600`.

    Seconds may have any number of digits and are not cut to microseconds; they, the time of day and a zone
    (`Z`, `+02:00`) may be left out, and a T may stand before the time. A bare number is seconds after 1970-01-01
    00:00. Raises ValueError.
    """
    match = _DATE_AND_TIME.fullmatch(text)
    if match is None:
        return divmod_day(_number(text))
    day, minute, seconds, zone = match.groups()
    try:
        days, seconds_before = _minute(day, minute or "00:00", zone or "Z")
    except (ValueError, OverflowError):
        raise _not_an_instant(text) from None
    return days, seconds_before + float(seconds or 0)


@functools.lru_cache(maxsize=4096)
def parse_day(text: str) -> int:
    """Days after 1970-01-01 of `2023-11-16`. Raises ValueError."""
    try:
        if _DAY.fullmatch(text) is not None:
            return date.fromisoformat(text.strip()).toordinal() - _EPOCH.toordinal()
    except ValueError:  # no day that a calendar has
        pass
    raise ValueError(f"{shown(text)} is not a date like 2023-11-16")


def day_text(day: int) -> str:
    return str(date.fromordinal(day + _EPOCH.toordinal()))


def instant_text(day: int, seconds: float) -> str:
    """Date and time to the millisecond."""
    text = str(datetime(1970, 1, 1) + timedelta(days=day, seconds=round(seconds, 3)))
    return text[:23]


def divmod_day(seconds: float) -> tuple[int, float]:
    days, rest = divmod(seconds, DAY)
    return int(days), rest


def _number(text: str) -> float:
    try:
        seconds = parse_number(text)
    except ValueError:
        raise _not_an_instant(text) from None
    if not 0 <= seconds < _LAST:
        raise _not_an_instant(text)
    return seconds


@functools.lru_cache(maxsize=4096)  # a trace has many rows a minute
def _minute(day: str, minute: str, zone: str) -> tuple[int, float]:
    since = datetime.fromisoformat(f"{day}T{minute}{zone}") - _EPOCH
    return since.days, float(since.seconds)


def _not_an_instant(text: str) -> ValueError:
    return ValueError(f"{shown(text)} is not a date and time like 2023-11-16 18:17:03.97, or seconds after 1970-01-01")
