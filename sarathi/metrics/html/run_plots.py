"""The plots of one run's report: which columns become which figure, and the captions that say what was left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sarathi.metrics.fairness import PROMPT_LENGTH_BUCKETS
from sarathi.metrics.headline import E2E, TPOT, TTFT, value
from sarathi.metrics.html.figures import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    MAX_STEPS,
    ORANGE,
    RED,
    add_line,
    bars,
    cdf,
    has_long_tail,
    histogram,
    over_time,
    plotly_text,
    scatter,
)
from sarathi.metrics.html.page import Page
from sarathi.metrics.merge import total_over_replicas
from sarathi.metrics.run_folder import RunFolder
from sarathi.metrics.thinning import binned, medians_by_doubling, thinned, thinned_note

NUM_SLICES = 200  # of time, where a mean or a median is drawn
PURPLE = COLORS[4]

# What is drawn of a run's columns.
PROMPT_LENGTH = "request_num_prefill_tokens"
REQUEST_COLUMNS = ("request_id", PROMPT_LENGTH, "request_num_decode_tokens", E2E, TTFT, TPOT, "slowdown")
ROUND_COLUMNS = (
    "step_id",
    "replica_id",
    "end_time",
    "batch_execution_time",
    "predicted_time",
    "target_time",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "num_prefills",
    "num_waiting",
    "num_running",
    "num_used_blocks",
)

Columns = dict[str, np.ndarray]
Compositions = Callable[[np.ndarray], list[str]]


def add_latency_plots(page: Page, run: RunFolder) -> None:
    """CDFs of E2E, TTFT, TPOT and inter-token latency; TTFT and slowdown by prompt length."""
    requests = run.requests
    for name, title, metric, unit, color in (
        ("end-to-end time", "End-to-end time", E2E, "s", BLUE),
        ("time to first token", "Time to first token", TTFT, "s", ORANGE),
        ("time per output token", "Time per output token", TPOT, "ms", GREEN),
    ):
        known = int(np.isfinite(requests[metric]).sum())
        if known:
            figure = cdf({name: requests[metric]}, name, unit, scale=1e3 if unit == "ms" else 1.0, color=color)
            page.add_figure(figure, f"{known:,} finished requests", title=title, log_switch="x")
    gaps, counts = run.token_gaps
    if len(gaps):
        figure = cdf({"inter-token latency": (gaps, counts)}, "inter-token latency", "ms", scale=1e3, color=PURPLE)
        page.add_figure(
            figure, f"{int(counts.sum()):,} gaps between output tokens", title="Inter-token latency", log_switch="x"
        )
    if np.isfinite(requests[TTFT]).any():
        _add_ttft_by_prompt_length(page, requests)
        _add_slowdown(page, requests)


def _add_ttft_by_prompt_length(page: Page, requests: Columns) -> None:
    lengths, ttft = requests[PROMPT_LENGTH], requests[TTFT]
    shown = thinned(ttft)
    texts = [
        f"request {plotly_text(str(request_id))[:80]}, {output:,.0f} output tokens"
        for request_id, output in zip(
            requests["request_id"][shown], requests["request_num_decode_tokens"][shown], strict=True
        )
    ]
    figure = scatter(
        {"one request": (lengths[shown], ttft[shown])},
        "prompt length (tokens), log scale",
        "time to first token (s)",
        "%{x:,} prompt tokens<br>%{y:,.4~r} s<extra></extra>",
        texts={"one request": texts},
        log_x=True,
        log_y=has_long_tail(float(np.nanmedian(ttft)), float(np.nanmax(ttft))),
    )
    x, y = medians_by_doubling(lengths, ttft)
    if len(x) > 1:
        hover = "median of prompts about %{x:,.0f} tokens long<br>%{y:,.4~r} s<extra></extra>"
        add_line(figure, x, y, "median per doubling", RED, hover)
    caption = thinned_note(int(np.isfinite(ttft).sum()), "finished requests")
    page.add_figure(figure, caption, title="Time to first token by prompt length", log_switch="y")


def _add_slowdown(page: Page, requests: Columns) -> None:
    known = np.isfinite(requests["slowdown"])
    slowdown, lengths = requests["slowdown"][known], requests[PROMPT_LENGTH][known]
    bucket = np.searchsorted(PROMPT_LENGTH_BUCKETS, lengths, side="left")
    edges = [f"{edge:,}" for edge in PROMPT_LENGTH_BUCKETS]
    names = [f"up to {edges[0]}", *(f"to {edge}" for edge in edges[1:]), f"over {edges[-1]}"]
    groups = [(names[i], slowdown[bucket == i]) for i in np.unique(bucket)]
    statistics = {"median": np.median, "mean": np.mean, "worst": np.max}
    figure = bars(
        [f"{name}\n({len(values):,})" for name, values in groups],
        {word: np.array([statistic(values) for _, values in groups]) for word, statistic in statistics.items()},
        "prompt length (tokens), and number of requests",
        "end-to-end time / execution time",
        "slowdown %{y:,.3~r}",
    )
    caption = "1: the request never waited, whatever its length"
    page.add_figure(figure, caption, title="Slowdown by prompt length", log_switch="y")


def add_round_plots(page: Page, run: RunFolder) -> None:
    """Round time, its prediction, tokens, queue and KV blocks over time."""
    rounds = run.rounds
    if not len(rounds["end_time"]):
        page.add_notice("No round ran.")
        return
    compositions = _compositions(rounds, several=run.num_replicas > 1)
    _add_round_time(page, rounds, compositions)
    if np.isfinite(rounds["predicted_time"]).any():
        _add_prediction(page, rounds, compositions)
    else:
        milliseconds = 1e3 * rounds["batch_execution_time"]
        figure = histogram(milliseconds, "round time", "ms", "rounds")
        page.add_figure(figure, f"{len(milliseconds):,} rounds", title="Round times", log_switch="y")
    _add_tokens(page, rounds)
    _add_queue(page, rounds, run.num_replicas)
    _add_blocks(page, rounds, run.num_replicas, value(run.summary, "num_gpu_blocks"))


def _add_round_time(page: Page, rounds: Columns, compositions: Compositions) -> None:
    times, milliseconds = rounds["end_time"], 1e3 * rounds["batch_execution_time"]
    shown = thinned(milliseconds)
    hover = "at %{x:,.5~r} s<br>%{y:,.4~r} ms<extra></extra>"
    series, texts = {"measured": (times[shown], milliseconds[shown])}, {"measured": compositions(shown)}
    predicted = shown[np.isfinite(rounds["predicted_time"][shown])]
    if len(predicted):
        series["predicted"] = times[predicted], 1e3 * rounds["predicted_time"][predicted]
        texts["predicted"] = [f"predicted for {text}" for text in compositions(predicted)]
    figure = scatter(series, "time (s)", "round time (ms)", hover, texts=texts)
    if len(times) > 20 * NUM_SLICES:
        x, y = binned(times, milliseconds, NUM_SLICES, "median")
        add_line(figure, x, y, "measured, median over time", GREEN, f"median {hover}")
    if np.isfinite(rounds["target_time"]).any():
        known = np.flatnonzero(np.isfinite(rounds["target_time"]))
        known = known[np.linspace(0, len(known) - 1, min(len(known), MAX_STEPS)).astype(int)]
        y = 1e3 * rounds["target_time"][known]
        add_line(figure, times[known], y, "target", RED, f"target: {hover}", dash="dash")
    caption = thinned_note(len(times), "rounds")
    page.add_figure(figure, caption, title="Round time", wide=True, log_switch="y")


def _add_prediction(page: Page, rounds: Columns, compositions: Compositions) -> None:
    predicted, measured = 1e3 * rounds["predicted_time"], 1e3 * rounds["batch_execution_time"]
    known = np.isfinite(predicted)
    shown = thinned(np.where(known, np.abs(predicted - measured), np.nan))
    figure = scatter(
        {"one round": (measured[shown], predicted[shown])},
        "measured (ms)",
        "predicted (ms)",
        "measured %{x:,.4~r} ms<br>predicted %{y:,.4~r} ms<extra></extra>",
        texts={"one round": compositions(shown)},
    )
    top = float(max(predicted[shown].max(), measured[shown].max()))
    add_line(figure, np.array([0, top]), np.array([0, top]), "exact", GREY)
    caption = thinned_note(int(known.sum()), "rounds with a prediction").replace("highest", "worst")
    page.add_figure(figure, caption, title="Predicted against measured round time")


def _add_tokens(page: Page, rounds: Columns) -> None:
    series = {
        "decode tokens": rounds["batch_num_decode_tokens"],
        "prefill tokens": rounds["batch_num_prefill_tokens"],
    }
    num = len(rounds["end_time"])
    figure = over_time(
        rounds["end_time"],
        series,
        "tokens per round",
        "tokens",
        reduce="mean",
        stacked=True,
        colors=(BLUE, ORANGE),
        num_slices=NUM_SLICES,
    )
    caption = f"{num:,} rounds" + (f", mean of each of {NUM_SLICES} slices of time" if num > NUM_SLICES else "")
    page.add_figure(figure, caption, title="Tokens per round")


def _add_queue(page: Page, rounds: Columns, num_replicas: int) -> None:
    counts = {name: rounds[f"num_{name}"] for name in ("waiting", "running")}
    series = {name: total_over_replicas(values, rounds["replica_id"]) for name, values in counts.items()}
    figure = over_time(rounds["end_time"], series, "requests", "requests", colors=(ORANGE, BLUE))
    where = f", in all {num_replicas} replicas together" if num_replicas > 1 else ""
    page.add_figure(figure, _slices(len(rounds["end_time"])) + where, title="Queue depth")
    if num_replicas > 1:
        load = _by_replica(counts["waiting"] + counts["running"], rounds, num_replicas)
        figure = over_time(rounds["end_time"], load, "requests waiting or running", "requests", num_slices=NUM_SLICES)
        page.add_figure(figure, _first_replicas(num_replicas), title="Load of each replica")


def _add_blocks(page: Page, rounds: Columns, num_replicas: int, num_blocks: float | None) -> None:
    times, used = rounds["end_time"], rounds["num_used_blocks"]
    series = {"blocks in use": used} if num_replicas == 1 else _by_replica(used, rounds, num_replicas)
    colors = (GREEN,) if num_replicas == 1 else COLORS
    figure = over_time(times, series, "KV blocks", "blocks", colors=colors)
    if num_blocks:
        name = f"all {num_blocks:,.0f}"
        add_line(figure, times[[0, -1]], np.full(2, num_blocks), name, GREY, "%{y:,} in all", dash="dash")
    note = "; ".join(filter(None, [_slices(len(times)), _first_replicas(num_replicas)]))
    page.add_figure(figure, note, title="KV blocks in use")


# ---- columns


def _compositions(rounds: Columns, several: bool) -> Compositions:
    """What each of the rounds at some places held, for its hover label; of which of `several` replicas it was."""

    def of(places: np.ndarray) -> list[str]:
        names = ("step_id", "batch_num_prefill_tokens", "num_prefills", "batch_num_decode_tokens")
        rows = zip(*(rounds[name][places] for name in names), strict=True)
        owners = [f" of replica {i:.0f}" for i in rounds["replica_id"][places]] if several else [""] * len(places)
        return [
            f"round {step:.0f}{owner}<br>{tokens:,.0f} prefill tokens of {prompts:,.0f} prompts, {decodes:,.0f} decodes"
            for (step, tokens, prompts, decodes), owner in zip(rows, owners, strict=True)
        ]

    return of


def _by_replica(values: np.ndarray, rounds: Columns, num_replicas: int) -> Columns:
    """Of the first replicas, the latest of each one's `values` at the end of every round; 0 before its first."""
    owners = [rounds["replica_id"] == i for i in range(min(num_replicas, len(COLORS)))]
    return {f"replica {i}": total_over_replicas(np.where(own, values, 0), own) for i, own in enumerate(owners)}


def _slices(num: int) -> str:
    return f"{num:,} rounds" + (f", highest value of each of {MAX_STEPS:,} slices of time" if num > MAX_STEPS else "")


def _first_replicas(num_replicas: int) -> str:
    return f"the first {len(COLORS)} of {num_replicas} replicas" if num_replicas > len(COLORS) else ""
