"""report.html of one run: what stands in it, in reading order. Reads the run's folder and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sarathi.metrics.headline import E2E, ITL, TPOT, TTFT
from sarathi.metrics.html.page import NO_VALUE, Page, number
from sarathi.metrics.html.run_plots import add_latency_plots, add_round_plots
from sarathi.metrics.html.run_tables import (
    add_files,
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
    run = read_run(directory)
    path = run.path / REPORT
    write_text(path, report_page(run).render())
    return path


def report_page(run: RunFolder) -> Page:
    """The report as a page to render."""
    summary = run.summary
    device = " on ".join(str(summary[key]) for key in ("model", "device") if summary.get(key))
    words = [device, f"workload {summary['workload']}" if summary.get("workload") else "", f"run {run.path.name}"]
    words.insert(2, f"seed {summary['seed']}" if summary.get("seed") is not None else "")
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
        num_ignored = number(summary.get("num_ignored"))
        page.add_notice(f"{num_ignored} requests were ignored on arrival; the first: {summary['first_ignored']}")
    if not summary.get("num_finished"):
        page.add_notice("No request finished, so there are no latencies to show.")
    page.add_numbers(_headline(summary))
    page.add_section("Latency")
    add_latency_plots(page, run)
    add_percentiles(page, summary)
    if (summary.get("slo") or {}).get("classes"):
        page.add_section("Service level targets")
        add_slo_classes(page, summary["slo"])
    page.add_section("Rounds")
    add_round_plots(page, run)
    add_worst_predictions(page, run)
    add_policies(page, summary)
    if summary.get("replicas"):
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
    def of(metric: str, statistic: str) -> str:
        return duration((summary.get(metric) or {}).get(statistic))

    not_finished = [
        f"{number(summary.get(f'num_{word}'))} {word}"
        for word in ("ignored", "aborted", "unfinished")
        if word != "unfinished" or summary.get("num_unfinished")
    ]
    of_all = f"of {number(summary.get('num_requests'))}; {', '.join(not_finished)}"
    tiles = [
        ("Finished requests", number(summary.get("num_finished")), of_all),
        ("E2E time, mean", of(E2E, "mean"), f"P99 {of(E2E, 'p99')}"),
        ("TTFT, P50", of(TTFT, "p50"), f"P99 {of(TTFT, 'p99')}"),
        ("TPOT, mean", of(TPOT, "mean"), f"P99 {of(TPOT, 'p99')}"),
        ("Inter-token latency, P99", of(ITL, "p99"), f"P50 {of(ITL, 'p50')}"),
        ("Output tokens/s", number(summary.get("output_tokens_per_s")), _with_prompts(summary)),
        ("Requests/s", number(summary.get("requests_per_s")), f"over {duration(summary.get('makespan'))}"),
        ("Preemptions", number(summary.get("num_preemptions")), f"in {number(summary.get('num_rounds'))} rounds"),
    ]
    fairness = summary.get("fairness") or {}
    worst = f"worst slowdown {number(fairness.get('max_slowdown'), 3)}"
    tiles.append(("Jain index of slowdown", number(fairness.get("jain_index_slowdown"), 3), worst))
    slo, prediction = summary.get("slo") or {}, summary.get("prediction") or {}
    if slo.get("num_with_target"):
        met = f"{number(slo.get('num_met'))} of {number(slo['num_with_target'])} requests"
        tiles.append(("Targets met", _percent(slo.get("share_met"), 100), met))
        tiles.append(("Goodput, requests/s", number(slo.get("goodput_requests_per_s")), "finished within all targets"))
    if prediction.get("num_rounds"):
        rounds = f"{number(prediction['num_rounds'])} rounds with a prediction"
        tiles.append(("Prediction error, MAPE", _percent(prediction.get("mape_percent")), rounds))
        if prediction.get("share_within_5_percent") is not None:
            share = _percent(prediction["share_within_5_percent"], 100)
            tiles.append(("Rounds near the target", share, "within 5 % of it, of those"))
    return tiles


def duration(seconds: float | None) -> str:
    """Four significant digits, in milliseconds below a second."""
    if seconds is None:
        return NO_VALUE
    return f"{number(seconds, 4, 1e3)} ms" if 0 < abs(seconds) < 1 else f"{number(seconds)} s"


def _percent(value: float | None, factor: float = 1.0) -> str:
    return NO_VALUE if value is None else f"{number(value, 3, factor)} %"


def _with_prompts(summary: dict[str, Any]) -> str:
    return f"{number(summary.get('total_tokens_per_s'))} with prompts"
