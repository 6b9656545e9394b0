"""A comparison as tables on the terminal and as comparison.csv."""

from __future__ import annotations

import csv
import io

from sarathi.comparison.bootstrap import LEVEL, Interval
from sarathi.comparison.comparison import PAIRED_METRICS, Comparison, PairedRequests, Row
from sarathi.metrics.headline import NEITHER, Metric, terse_metrics
from sarathi.metrics.terminal_table import table_of


def terminal_tables(comparison: Comparison) -> str:
    """A row for each entry: the mean over its runs and the change against the baseline, each with its interval; then
    the requests that were paired."""
    metrics = terse_metrics([run.summary for entry in comparison.entries for run in entry.runs])
    rows = {
        entry.label: [
            str(len(entry.runs)),
            *(_cell(metric, comparison.row(entry.label, metric)) for metric in metrics),
        ]
        for entry in comparison.entries
    }
    parts = [table_of(rows, "run", ["runs", *(metric.label for metric in metrics)])]
    if any(len(entry.runs) > 1 for entry in comparison.entries):
        parts.append(
            f"Means over the seeds of a row; a..b is the {LEVEL:.0%} bootstrap interval of what stands above it."
        )
    if labels := dict.fromkeys(paired.label for paired in comparison.paired_requests):
        paired = {label: _paired_cells(comparison, label) for label in labels}
        headers = [f"{name} {what}" for name in ("E2E", "TTFT") for what in ("faster %", "slower %", "change s")]
        lone = any(paired.num_pairs == 1 for paired in comparison.paired_requests)
        parts.append(
            f"Requests that finished both here and in {comparison.baseline.label}, one by one"
            f"{' (one pair of runs has no interval)' if lone else ''}:"
        )
        parts.append(table_of(paired, "run", ["requests", *headers]))
    return "\n\n".join(parts)


def _cell(metric: Metric, row: Row) -> str:
    lines = [metric.show(row.value)]
    if metric.better == NEITHER:
        return lines[0]
    if row.ci_low is not None:
        lines.append(f"{metric.show(row.ci_low)}..{metric.show(row.ci_high)}")
    if row.delta_percent is not None:
        lines.append(f"{percent(row.delta_percent)}%")
        if row.delta_ci_low is not None and row.delta_ci_high is not None:
            lines.append(f"{percent(row.delta_ci_low)}..{percent(row.delta_ci_high)}")
    return "\n".join(lines)


def percent(value: float) -> str:
    """With its sign, and a decimal where it is small."""
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.1f}"


def _paired_cells(comparison: Comparison, label: str) -> list[str]:
    by_metric = {paired.metric: paired for paired in comparison.paired_requests if paired.label == label}
    cells = [f"{next(iter(by_metric.values())).num_requests:,}"]
    for metric in PAIRED_METRICS:
        paired = by_metric.get(metric)
        cells += ["-"] * 3 if paired is None else _shares_and_change(paired)
    return cells


def _shares_and_change(paired: PairedRequests) -> list[str]:
    def below(interval: Interval | None, factor: float, form: str) -> str:
        return "" if interval is None else "\n" + "..".join(f"{factor * end:{form}}" for end in interval)

    return [
        f"{100 * paired.share_faster:.1f}{below(paired.share_faster_interval, 100, '.1f')}",
        f"{100 * paired.share_slower:.1f}",
        f"{paired.difference:+.2f}{below(paired.difference_interval, 1, '+.2f')}",
    ]


def csv_text(comparison: Comparison) -> str:
    """`Comparison.rows` under a header, quoted as RFC 4180 has it; an empty cell for None."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in comparison.rows:
        cells = row._asdict()
        if row.paired is not None:
            cells["paired"] = "true" if row.paired else "false"
        writer.writerow(cells.values())
    return encodable(text.getvalue())


def encodable(text: str) -> str:
    """With "?" for what UTF-8 lacks, such as the bytes of a folder's name that are none."""
    return text.encode("utf-8", "replace").decode("utf-8")
