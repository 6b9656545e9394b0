"""Columns of numbers in a CSV file with a header: traces of requests, tables of measured rounds.

Knows nothing of what the columns mean.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sarathi.errors import shown

MAX_VALUE = 10**15  # of a column without a limit of its own; up to here every integer is a float and a C size
Parser = Callable[[str], float]


class Row(NamedTuple):
    line: int  # of the file, from 1
    values: list[float]  # one a column asked for


def read_rows(
    path: str | Path,
    columns: Sequence[str],
    limits: Mapping[str, int] | None = None,
    parsers: Mapping[str, Parser] | None = None,
) -> Iterator[Row]:
    """The named columns of each row, in file order; other columns are ignored.

    A byte-order mark, blank lines and blanks around cells are skipped. `parsers` read the cells of columns that do not
    hold plain numbers; they raise ValueError saying what is wrong with a cell. Raises ValueError, one line that names
    file, line and column, for a file that cannot be read or has no rows, a missing column, and a cell that is not a
    number from 0 to the column's entry in `limits`, else MAX_VALUE, or that its parser refuses.
    """
    own = parsers or {}
    highest = [math.inf if name in own else (limits or {}).get(name, MAX_VALUE) for name in columns]
    lowest = [-math.inf if name in own else 0 for name in columns]
    num_rows = 0
    with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
        lines = _lines(csv.reader(file), path)
        _, header = next(lines, (1, []))
        places = _find(header, columns, path)
        readers = list(zip((own.get(name, parse_number) for name in columns), places, lowest, highest, strict=True))
        for line, cells in lines:
            values = []
            try:  # the usual row first, what is wrong with another is found out below
                for read, place, low, high in readers:
                    value = read(cells[place])
                    if not low <= value <= high:
                        break
                    values.append(value)
            except (ValueError, IndexError):
                pass
            if len(values) < len(columns):
                values = _parse_one_by_one(cells, places, columns, own, highest, f"{path}, line {line}")
            yield Row(line, values)
            num_rows += 1
    if not num_rows:
        raise ValueError(f"{path}: no rows under the header {','.join(columns)}")


def read_header(path: str | Path) -> list[str]:
    """The names of a file's columns, none if it is empty. Raises ValueError as `read_rows`."""
    with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
        _, header = next(_lines(csv.reader(file), path), (1, []))
    return [name.strip() for name in header]


def parse_number(text: str) -> float:
    """The number. Raises ValueError for what is none, and for what Python alone takes for one: `1_000`, `١٢`."""
    if "_" not in text and text.isascii():
        try:
            return float(text)
        except ValueError:
            pass
    raise ValueError(f"{shown(text)} is not a number")


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong with a text file inside into a ValueError of one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a UTF-8 text file") from error


def check_number(value: float, limit: float) -> float:
    """The value. Raises ValueError, what is wrong and what is allowed, unless it is from 0 to `limit`."""
    if not 0 <= value <= limit:
        text = f"{value:g}" if isinstance(value, float) else shown(value)
        raise ValueError(f"{text} is not allowed; a number from 0 to {limit:,}")
    return float(value)


def _lines(reader: Any, path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each row that is not blank."""
    try:
        for cells in reader:
            if cells and (cells[0].strip() or any(cell.strip() for cell in cells)):
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


def _parse_one_by_one(
    cells: list[str],
    places: list[int],
    columns: Sequence[str],
    parsers: Mapping[str, Parser],
    highest: Sequence[float],
    where: str,
) -> list[float]:
    """The values of a row that is short or wrong; a cell that is missing is an empty one."""
    values = []
    for place, name, limit in zip(places, columns, highest, strict=True):
        text = cells[place].strip() if place < len(cells) else ""
        try:
            values.append(parsers[name](text) if name in parsers else check_number(parse_number(text), limit))
        except ValueError as error:
            raise ValueError(f"{where}, column {name}: {error}") from None
    return values
