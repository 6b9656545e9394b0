"""Numbers in a file of JSON lines, an object each, under the rules that `csv_columns` has for CSV.

Knows nothing of what the keys mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sarathi.csv_columns import check_number, reading
from sarathi.errors import shown


def is_json_lines(path: str | Path) -> bool:
    """Whether a file begins with an object. Raises ValueError if it cannot be read."""
    with reading(path), open(path, encoding="utf-8-sig") as file:
        first = next((line for line in file if not line.isspace()), "")
    return first.lstrip().startswith("{")


def read_json_rows(path: str | Path, keys: Sequence[str], limits: Mapping[str, int]) -> Iterator[list[float]]:
    """The values of `keys` of each line's object, in file order; other keys are ignored.

    Raises ValueError, one line that names file, line and key, for what is no object or has not these keys with numbers
    from 0 to `limits`.
    """
    with reading(path), open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where}: {shown(record)} is not a JSON object")
            yield [_json_number(record, key, limits[key], where) for key in keys]


def _json_number(record: dict[str, Any], key: str, limit: int, where: str) -> float:
    if key not in record:
        raise ValueError(f"{where}: {key} is missing; it has {shown(', '.join(record))}")
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}, {key}: {shown(value)} is not a number")
    try:
        return check_number(value, limit)
    except ValueError as error:
        raise ValueError(f"{where}, {key}: {error}") from None
