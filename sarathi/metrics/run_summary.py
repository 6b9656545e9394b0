"""Which kinds of values a summary.json holds. Knows its names, and no file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sarathi.errors import shown
from sarathi.metrics.headline import ITL
from sarathi.metrics.records import REQUEST_METRICS
from sarathi.metrics.summary import ROUND_METRICS

MAX_DEPTH, MAX_VALUES = 20, 1_000_000  # of a file of settings or of a summary

_TEXTS = ("scheduler", "model", "device", "workload", "routing", "first_ignored")
_NUMBERS = ("seed", "replica_id", "makespan", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
_OBJECTS = ("reasons", "prediction", "slo", "fairness", *REQUEST_METRICS, *ROUND_METRICS, ITL)
_OBJECTS_WITHIN = ("slo.classes", "fairness.slowdown_by_prompt_length")  # which hold objects


def check_plain(content: object) -> None:
    """Raises ValueError, one line, unless `content` is a mapping, by texts, of what JSON can say, not too deep."""
    if not isinstance(content, dict):
        raise ValueError("holds no mapping")
    num_left = MAX_VALUES
    found: list[tuple[str, object, int]] = [("", content, 0)]
    while found:
        name, value, depth = found.pop()
        inside: list[tuple[object, object]] = []
        if isinstance(value, dict):
            inside = list(value.items())
        elif isinstance(value, list):
            inside = [("", one) for one in value]
        num_left -= 1 + len(inside)
        if depth > MAX_DEPTH or num_left < 0:
            raise ValueError(f"{name} is nested too deeply, or holds too many values")
        for key, one in inside:
            if not isinstance(key, str):
                raise ValueError(f"{name or 'it'} holds the name {shown(key)}, which is not text")
            path = ".".join(filter(None, (name, key)))
            if not (one is None or isinstance(one, bool | float | str | list | dict) or is_number(one)):
                raise ValueError(f"{path} is {shown(one)}; text, a number, a list or a mapping is needed")
            found.append((path, one, depth + 1))


def is_number(value: object) -> bool:
    """Whether `value` is a number that a float can hold."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= 64
    return isinstance(value, float) and math.isfinite(value)


def check_summary(summary: Mapping[str, Any], where: str = "") -> None:
    """Raises ValueError, one line that names the key, where a value is of another kind than a run writes.

    A key may be absent, but for the two that tell how many rows the tables have.
    """
    for name in ("num_requests", "num_rounds"):
        if not isinstance(summary.get(name), int):
            raise ValueError(f"{where}{name} is {shown(summary.get(name))}; a number is needed")
    for name, value in summary.items():
        if name in _TEXTS:
            _check(value is None or isinstance(value, str), where + name, value, "text")
        elif name == "simulated":
            _check(isinstance(value, bool), where + name, value, "true or false")
        elif name in _OBJECTS:
            _check_numbers(value, name, where)
        elif name in _NUMBERS or name.startswith("num_"):
            _check(value is None or is_number(value), where + name, value, "a number or null")
        elif name == "replicas":
            _check(isinstance(value, list), where + name, value, "a list")
            for i, replica in enumerate(value):
                _check(isinstance(replica, dict), f"{where}replicas[{i}]", replica, "an object")
                check_summary(replica, f"{where}replicas[{i}].")


def _check_numbers(values: object, name: str, where: str) -> None:
    """An object of numbers; of those in `_OBJECTS_WITHIN` each value is such an object."""
    if not isinstance(values, dict):
        raise ValueError(f"{where}{name} is {shown(values)}; an object is needed")
    for key, value in values.items():
        path = f"{name}.{key}"
        if path in _OBJECTS_WITHIN:
            _check(isinstance(value, dict), where + path, value, "an object")
            for inner, one in value.items():
                _check_numbers(one, f"{path}.{inner}", where)
        else:
            _check(value is None or is_number(value), where + path, value, "a number or null")


def _check(is_right: bool, name: str, value: object, needed: str) -> None:
    if not is_right:
        raise ValueError(f"{name} is {shown(value)}; {needed} is needed")
