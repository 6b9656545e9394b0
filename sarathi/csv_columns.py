"""Columns of numbers in a CSV file with a header: traces of requests, tables of measured rounds.

Knows nothing of what the columns mean.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sarathi.errors import shown

MAX_VALUE = 10**15  # of a column without a limit of its own; up to here every integer is a float and a C size


class Row(NamedTuple):
    line: int  # of the file, from 1
    values: list[float]  # one a column asked for


def read_rows(path: str | Path, columns: Sequence[str], limits: Mapping[str, int] | None = None) -> Iterator[Row]:
    """The named columns of each row, in file order; other columns are ignored.

    A byte-order mark, blank lines and blanks around cells are skipped. Raises ValueError, one line that names file,
    line and column, for a file that cannot be read or has no rows, a missing column, and a cell that is not a
    number from 0 to the column's entry in `limits`, else MAX_VALUE.
    """
    highest = [(limits or {}).get(name, MAX_VALUE) for name in columns]
    num_rows = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = _lines(csv.reader(file), path)
            _, header = next(lines, (1, []))
            places = _find(header, columns, path)
            for line, cells in lines:
                yield Row(line, _numbers(cells, places, columns, highest, f"{path}, line {line}"))
                num_rows += 1
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a UTF-8 text file") from error
    if not num_rows:
        raise ValueError(f"{path}: no rows under the header {','.join(columns)}")


def _lines(reader: Any, path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each row that is not blank."""
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error


def _find(header: list[str], columns: Sequence[str], path: str | Path) -> list[int]:
    names = [name.strip() for name in header]
    if not names:
        raise ValueError(f"{path}: empty; a header with {','.join(columns)} is needed")
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{path}, line 1: column {', '.join(missing)} is missing; it has {', '.join(names)}")
    return [names.index(name) for name in columns]


def _numbers(
    cells: list[str], places: list[int], columns: Sequence[str], highest: Sequence[int], where: str
) -> list[float]:
    values = []
    for place, name, limit in zip(places, columns, highest, strict=True):
        text = cells[place].strip() if place < len(cells) else ""
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{where}, column {name}: {shown(text)} is not a number") from None
        if not 0 <= value <= limit:
            raise ValueError(f"{where}, column {name}: {value:g} is not allowed; a number from 0 to {limit:,}")
        values.append(value)
    return values
