"""What wandb gets of a run once it is over: summary, table of requests, plots and report, read from its folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sarathi.metrics.run_folder import REQUEST_TEXTS

if TYPE_CHECKING:
    import wandb

MAX_TABLE_ROWS = 10_000  # as many as wandb shows of a table


def record_end(run: wandb.Run, directory: Path, step: int) -> str:
    """Summary, table, plots and report, as far as they are there; a note of what was left out."""
    import wandb

    if (directory / "summary.json").exists():
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        run.summary.update(dict(flat_summary(summary)))
    table, note = requests_table(directory)
    views: dict[str, Any] = {} if table is None else {"requests": table}
    for plot in sorted((directory / "plots").glob("*.png")):
        views[f"plots/{plot.stem}"] = wandb.Image(str(plot))
    if (directory / "report.html").exists():
        views["report"] = wandb.Html(str(directory / "report.html"), inject=False)
    if views:
        run.log(views, step=step)
    return note


def flat_summary(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What can stand in a column of wandb's table of runs, named as in request_e2e_time/p99; lists are left out."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat_summary(value, f"{prefix}{name}/")
        elif isinstance(value, str | int | float):
            yield f"{prefix}{name}", value


def requests_table(directory: Path) -> tuple[wandb.Table | None, str]:
    import wandb

    path = next((path for name in ("requests.csv", "requests.csv.part") if (path := directory / name).exists()), None)
    if path is None:
        return None, ""
    with open(path, encoding="utf-8", newline="") as file:
        num_rows = sum(1 for _ in csv.reader(file)) - 1
    every = max(1, -(-num_rows // MAX_TABLE_ROWS))
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        table = wandb.Table(columns=[*header])
        for i, cells in enumerate(rows):
            if i % every == 0 and len(cells) == len(header):  # a failed run may break off in a line
                table.add_data(*(_cell(name, cell) for name, cell in zip(header, cells, strict=True)))
    note = f"its table holds one in {every} of {num_rows:,} requests, requests.csv all" if every > 1 else ""
    return table, note


def _cell(column: str, text: str) -> str | int | float | None:
    return text if column in REQUEST_TEXTS else None if text == "" else number(text)


def number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)
