"""report.html of one run: what stands in it, in reading order. Reads the run's folder and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sarathi.metrics.headline import E2E, ITL, TPOT, TTFT, replicas_of, value
from sarathi.metrics.html import run_plots, run_tables
from sarathi.metrics.html.page import NO_VALUE, Page, number
from sarathi.metrics.html.run_plots import add_latency_plots, add_round_plots
from sarathi.metrics.html.run_tables import (
    add_files,
    add_operators,
    add_percentiles,
    add_policies,
    add_replicas,
    add_slo_classes,
    add_slowest_requests,
    add_worst_predictions,
)
from sarathi.metrics.html.settings import add_settings
from sarathi.metrics.run_folder import RunFolder, read_run
from sarathi.metrics.sinks import write_text

REPORT = "report.html"


def write_run_report(directory: str | Path) -> Path:
    """Write report.html into the run's folder and return its path.

    Raises ValueError, one line, where the folder holds no finished run, and ImportError where plotly is not installed.
    """
    run = read_run(
        directory,
        {*run_plots.REQUEST_COLUMNS, *run_tables.REQUEST_COLUMNS},
        {*run_plots.ROUND_COLUMNS, *run_tables.ROUND_COLUMNS},
    )
    path = run.path / REPORT
    write_text(path, report_page(run).render())
    return path


def report_page(run: RunFolder) -> Page:
    """The report as a page to render."""
    summary = run.summary
    device = " on ".join(str(summary[key]) for key in ("model", "device") if summary.get(key))
    words = [
        device,
        f"workload {summary['workload']}" if summary.get("workload") else "",
        replicas_of(summary),
        f"seed {summary['seed']}" if summary.get("seed") is not None else "",
        f"run {run.path.absolute().name}",
    ]
    page = Page(
        str(summary.get("scheduler") or "Run"),
        " · ".join(filter(None, words)),
        badge="simulated" if summary.get("simulated") else "",
    )
    if summary.get("simulated"):
        page.add_notice(
            f"Simulated device: no GPU ran. Times of rounds are computed for {summary.get('device')} and pass in "
            "virtual time; nothing below was measured on a device."
        )
    if summary.get("first_ignored"):
        num_ignored = number(value(summary, "num_ignored"))
        page.add_notice(f"{num_ignored} requests were ignored on arrival; the first: {summary['first_ignored']}")
    if not summary.get("num_finished"):
        page.add_notice("No request finished, so there are no latencies to show.")
    page.add_numbers(_headline(summary))
    page.add_section("Latency")
    add_latency_plots(page, run)
    add_percentiles(page, summary)
    if summary.get("slo", {}).get("classes"):
        page.add_section("Service level targets")
        add_slo_classes(page, summary["slo"])
    page.add_section("Rounds")
    add_round_plots(page, run)
    add_worst_predictions(page, run)
    add_policies(page, summary)
    if summary.get("operators") or summary.get("cpu_operators"):
        page.add_section("Operators", "Time of a round by operator; shares are of all its operators together.")
        add_operators(page, summary)
    if run.num_replicas > 1:
        page.add_section("Replicas", f"Requests were routed by {summary.get('routing')}.")
        add_replicas(page, summary["replicas"])
    page.add_section("Requests")
    add_slowest_requests(page, run)
    page.add_section("Settings")
    add_settings(page, run.config)
    page.add_section("Files")
    add_files(page, run.path)
    return page


def _headline(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    def count(name: str, digits: int = 4) -> str:
        return number(value(summary, name), digits)

    def time(name: str) -> str:
        return duration(value(summary, name))

    not_finished = [
        f"{count(f'num_{word}')} {word}"
        for word in ("ignored", "aborted", "unfinished")
        if word != "unfinished" or value(summary, "num_unfinished")
    ]
    tiles = [
        ("Finished requests", count("num_finished"), f"of {count('num_requests')}; {', '.join(not_finished)}"),
        ("E2E time, mean", time(f"{E2E}.mean"), f"P99 {time(f'{E2E}.p99')}"),
        ("TTFT, P50", time(f"{TTFT}.p50"), f"P99 {time(f'{TTFT}.p99')}"),
        ("TPOT, mean", time(f"{TPOT}.mean"), f"P99 {time(f'{TPOT}.p99')}"),
        ("Inter-token latency, P99", time(f"{ITL}.p99"), f"P50 {time(f'{ITL}.p50')}"),
        ("Output tokens/s", count("output_tokens_per_s"), f"{count('total_tokens_per_s')} with prompts"),
        ("Requests/s", count("requests_per_s"), f"over {time('makespan')}"),
        ("Preemptions", count("num_preemptions"), f"in {count('num_rounds')} rounds"),
        (
            "Jain index of slowdown",
            count("fairness.jain_index_slowdown", 3),
            f"worst slowdown {count('fairness.max_slowdown', 3)}",
        ),
    ]
    if value(summary, "slo.num_with_target"):
        met = f"{count('slo.num_met')} of {count('slo.num_with_target')} requests"
        tiles.append(("Targets met", _percent(value(summary, "slo.share_met"), 100), met))
        tiles.append(("Goodput, requests/s", count("slo.goodput_requests_per_s"), "finished within all targets"))
    if value(summary, "prediction.num_rounds"):
        rounds = f"{count('prediction.num_rounds')} rounds with a prediction"
        tiles.append(("Prediction error, MAPE", _percent(value(summary, "prediction.mape_percent")), rounds))
        if (share := value(summary, "prediction.share_within_5_percent")) is not None:
            tiles.append(("Rounds near the target", _percent(share, 100), "within 5 % of it, of those"))
    return tiles


def duration(seconds: float | None) -> str:
    """Four significant digits, in milliseconds below a second."""
    if seconds is None:
        return NO_VALUE
    return f"{number(seconds, 4, 1e3)} ms" if 0 < abs(seconds) < 1 else f"{number(seconds)} s"


def _percent(share: float | None, factor: float = 1.0) -> str:
    return NO_VALUE if share is None else f"{number(share, 3, factor)} %"
