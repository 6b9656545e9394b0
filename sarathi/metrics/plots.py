"""PNG plots of one run, and of several runs over one another. Reads a run's columns, decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sarathi.metrics.headline import E2E, TTFT, replicas_of
from sarathi.metrics.plot_style import (
    BLUE,
    COLORS,
    GREY,
    LINE_STYLES,
    ORANGE,
    RED,
    legend_above,
    new_figure,
    save_figure,
    seconds_text,
)
from sarathi.metrics.records import RunData
from sarathi.metrics.summary import prediction
from sarathi.metrics.thinning import binned, cdf_indices, distinct, medians_by_doubling, thinned, thinned_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LATENCIES = ((E2E, "end-to-end time (s)"), (TTFT, "time to first token (s)"))
NUM_BINS = 160  # of time, where a column is averaged
MAX_STEPS = 1000  # slices of time that a long line over it is drawn as


def plot_run(data: RunData, directory: str | Path) -> list[Path]:
    """Draw the run's plots into `directory` (made if absent) and return the files."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    drawings = (
        ("latency_cdf.png", "Latency of requests", _latency_cdf),
        ("ttft_by_prompt_length.png", "Time to first token by prompt length", _ttft_by_prompt_length),
        ("round_time.png", "Round time", _round_time),
        ("queue_depth.png", "Queue depth", _queue_depth),
        ("tokens_per_round.png", "Tokens per round", _tokens_per_round),
    )
    if np.isfinite(data.rounds["predicted_time"]).any():
        drawings = (*drawings, ("prediction.png", "Predicted rounds", _prediction))
    paths = []
    for name, title, draw in drawings:
        figure = new_figure()
        caption = draw(figure, data)
        paths.append(save_figure(figure, directory / name, title, run_title(data.metadata), caption))
    return paths


def plot_comparison(runs: Mapping[str, RunData], path: str | Path) -> Path:
    """Overlay the CDFs of E2E time and TTFT of several runs, labelled by the keys of `runs`."""
    figure = new_figure()
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (metric, label) in zip(axes, LATENCIES, strict=True):
        for i, (name, data) in enumerate(runs.items()):
            style = LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)]
            _cdf(ax, _finite(data.requests[metric]), COLORS[i % len(COLORS)], name, style)
        if ax.dataLim.x1 > 0:  # the slowest and the fastest scheduler are often a factor of ten apart
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        ax.set_xlabel(label + ", log scale")
        _percent_axis(ax)
    axes[0].set_ylabel("share of finished requests")
    axes[1].legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    machines = {machine_title(data.metadata) for data in runs.values()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    caption = f"finished requests: {_range([len(data.requests[E2E]) for data in runs.values()])}"
    machine = machines.pop() if len(machines) == 1 else ""
    return save_figure(figure, path, "Schedulers compared", machine, caption, right=0.79)


def run_title(metadata: Mapping[str, object]) -> str:
    """'SARATHI · Qwen/Qwen3-8B on rtx_4090 (simulated)', as far as the metadata tell."""
    parts = [str(metadata.get("scheduler") or ""), machine_title(metadata)]
    return " · ".join(part for part in parts if part)


def machine_title(metadata: Mapping[str, object]) -> str:
    """'Qwen/Qwen3-8B on rtx_4090, 4 replicas (simulated)', as far as the metadata tell."""
    words = [str(word) for word in (metadata.get("model"), metadata.get("device")) if word]
    machine = ", ".join(filter(None, [" on ".join(words), replicas_of(metadata)]))
    return machine + (" (simulated)" if metadata.get("simulated") else "")


# ---- the single plots: each draws on a figure and returns a caption


def _latency_cdf(figure: Figure, data: RunData) -> str:
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (metric, label), color in zip(axes, LATENCIES, (BLUE, ORANGE), strict=True):
        values = _finite(data.requests[metric])
        _cdf(ax, values, color, metric)
        ax.set_xlabel(label)
        ax.set_xlim(left=0)
        _percent_axis(ax)
        _mark_percentiles(ax, values)
    axes[0].set_ylabel("share of finished requests")
    return f"{len(data.requests[E2E]):,} finished requests"


def _mark_percentiles(ax: Axes, values: np.ndarray) -> None:
    for q in (50, 95, 99) if len(values) else ():
        value = float(np.percentile(values, q))
        ax.plot([value], [q / 100], "o", color=GREY, markersize=4, zorder=3)
        left = value > 0.6 * ax.get_xlim()[1]
        ax.annotate(
            f"P{q} {seconds_text(value)}",
            (value, q / 100),
            xytext=(-7 if left else 7, 3 if left else -9),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=8.5,
            color="#374151",
        )


def _ttft_by_prompt_length(figure: Figure, data: RunData) -> str:
    ax = figure.subplots()
    lengths, ttft = data.requests["request_num_prefill_tokens"], data.requests[TTFT]
    shown = thinned(ttft)
    alpha = 0.65 if len(ttft) < 500 else 0.25
    ax.scatter(lengths[shown], ttft[shown], s=16, color=BLUE, alpha=alpha, linewidths=0, label="one request")
    if len(ttft):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        x, medians = medians_by_doubling(lengths, ttft)
        if len(x):
            ax.plot(x, medians, "-o", color=RED, markersize=5, linewidth=1.8, label="median per doubling")
        legend_above(ax)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="prompt length (tokens)", ylabel="time to first token (s)")
    return thinned_note(len(ttft), "finished requests")


def _round_time(figure: Figure, data: RunData) -> str:
    ax, side = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    end_times, milliseconds = data.rounds["end_time"], 1e3 * data.rounds["batch_execution_time"]
    shown = thinned(milliseconds)
    alpha = 0.5 if len(shown) < 1000 else 0.2
    ax.scatter(end_times[shown], milliseconds[shown], s=7, color=BLUE, alpha=alpha, linewidths=0, label="one round")
    if len(milliseconds):
        starts, medians = binned(end_times, milliseconds, NUM_BINS // 2, "median")
        ax.plot(starts, medians, color=RED, linewidth=1.6, label="median over time")
        legend_above(ax)
        top = float(np.percentile(milliseconds, 99.9)) * 1.1
        side.hist(milliseconds, bins=60, range=(0, top), orientation="horizontal", color=BLUE, alpha=0.8)
        ax.set_ylim(0, top)
    ax.set(xlabel="time (s)", ylabel="round time (ms)")
    side.set(xlabel="rounds")
    above = int((milliseconds > ax.get_ylim()[1]).sum())
    return thinned_note(len(milliseconds), "rounds") + (f"; {above} above the axis" if above else "")


def _queue_depth(figure: Figure, data: RunData) -> str:
    ax = figure.subplots()
    times, caption = data.rounds["end_time"], f"{len(data.rounds['end_time']):,} rounds"
    for name, color in (("waiting", ORANGE), ("running", BLUE)):
        x, y = times, data.rounds[f"num_{name}"]
        if len(y) > 4 * MAX_STEPS:
            x, y = binned(times, y, MAX_STEPS, "max")
            caption = f"highest value in each of {MAX_STEPS:,} time slices of {len(times):,} rounds"
        ax.fill_between(x, y, step="post", color=color, alpha=0.18, linewidth=0)
        ax.step(x, y, where="post", color=color, linewidth=1.4, label=name)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    ax.set(xlabel="time (s)", ylabel="requests after the round was filled")
    legend_above(ax)
    return caption


def _tokens_per_round(figure: Figure, data: RunData) -> str:
    ax, side = figure.subplots(1, 2, width_ratios=(4, 1))
    times = data.rounds["end_time"]
    decode, prefill = data.rounds["batch_num_decode_tokens"], data.rounds["batch_num_prefill_tokens"]
    caption = f"{len(times):,} rounds"
    if len(times):
        x, mean_decode = binned(times, decode, NUM_BINS, "mean")
        _, mean_prefill = binned(times, prefill, NUM_BINS, "mean")
        labels = ("decode tokens", "prefill tokens")
        ax.stackplot(x, mean_decode, mean_prefill, labels=labels, colors=(BLUE, ORANGE), alpha=0.85, linewidth=0)
        ax.margins(x=0.01)
        legend_above(ax)
        ax.set_ylim(0, 1.05 * float((mean_decode + mean_prefill).max()))
        tokens = data.rounds["batch_num_tokens"]
        side.hist(tokens, bins=50, range=(0, float(tokens.max()) + 1), orientation="horizontal", color=GREY, alpha=0.85)
        side.set_xscale("log")
        caption += f", mean over each of {NUM_BINS} time slices; right: rounds by their tokens, log scale"
    ax.set(xlabel="time (s)", ylabel="tokens per round")
    side.set(xlabel="rounds")
    return caption


def _prediction(figure: Figure, data: RunData) -> str:
    """Left: predicted against measured time. Right: the measured time of the same rounds, and their target."""
    shown = thinned(data.rounds["predicted_time"])
    predicted, measured, target = (
        1e3 * data.rounds[name][shown] for name in ("predicted_time", "batch_execution_time", "target_time")
    )
    ax, over_time = figure.subplots(1, 2, width_ratios=(2, 3))
    alpha = 0.5 if len(shown) < 1000 else 0.2
    top = 1.05 * float(max(predicted.max(), measured.max()))
    ax.scatter(measured, predicted, s=8, color=BLUE, alpha=alpha, linewidths=0)
    ax.plot([0, top], [0, top], color=GREY, linewidth=1)
    ax.set(xlim=(0, top), ylim=(0, top), xlabel="measured (ms)", ylabel="predicted (ms)")
    times = data.rounds["end_time"][shown]
    over_time.scatter(times, measured, s=8, color=BLUE, alpha=alpha, linewidths=0, label="measured")
    over_time.plot(times, target, color=RED, linewidth=1.4, label="target")
    over_time.set(ylim=(0, top), xlabel="time (s)")
    legend_above(over_time)
    share = prediction(data)["share_within_5_percent"]
    aim = "" if share is None else f"; {100 * share:.0f} % within 5 % of the target"
    return thinned_note(int(np.isfinite(data.rounds["predicted_time"]).sum()), "rounds with prefills") + aim


# ---- shared pieces


def _cdf(ax: Axes, values: np.ndarray, color: str, label: str, style: str = "-") -> None:
    values, cumulative = distinct(values)
    share = cumulative / max(len(values), 1)
    shown = cdf_indices(share)
    ax.step(values[shown], share[shown], where="post", color=color, linestyle=style, linewidth=1.8, label=label)


def _percent_axis(ax: Axes) -> None:
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f}%")


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
