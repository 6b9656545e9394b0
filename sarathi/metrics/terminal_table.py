"""A table for the terminal. Knows nothing of what stands in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def table_of(rows: Mapping[str, Sequence[str]], first: str, headers: Sequence[str]) -> str:
    """A row for each name, which stands under `first`; each word of a header on a line of its own."""
    from tabulate import tabulate

    wrapped = [header.replace(" ", "\n") for header in (first, *headers)]
    align = ("left", *("right",) * len(headers))
    cells = [[name, *row] for name, row in rows.items()]
    return tabulate(cells, headers=wrapped, tablefmt="simple", colalign=align, disable_numparse=True)
