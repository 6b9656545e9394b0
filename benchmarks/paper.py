"""The paper's own figures, as it prints them: `paper.json`, by table and column. The only numbers that no run gave."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from benchmarks.harness.statistics import percent

# Tables 9 and 10 print "ms" where only seconds are consistent: after its prefill a request of Table 10 would take 7 ms,
# less than one decode round. Their latencies are read as seconds, and named so here.


@functools.cache
def paper() -> dict[str, Any]:
    """All figures."""
    return json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))


def row(table: str, **labels: object) -> dict[str, Any]:
    """The one row of a table with these labels."""
    (found,) = (row for row in rows(table) if labels.items() <= row.items())
    return found


def policy_change(table: str, column: str, **labels: object) -> float:
    """Percent by which Aging changes a column of the row with these labels, against FCFS."""
    fcfs, aging = (row(table, policy=policy, **labels)[column] for policy in ("FCFS", "AGING"))
    return percent(fcfs, aging)


def rows(table: str) -> list[dict[str, Any]]:
    """The rows of a table by column name."""
    return [dict(zip(paper()[table]["columns"], row, strict=True)) for row in paper()[table]["rows"]]
