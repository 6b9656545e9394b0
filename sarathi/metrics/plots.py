"""PNG plots of one run, and of several runs over one another. Reads a run's columns, decides nothing.

Matplotlib is imported inside functions and drawn on the Agg canvas, without pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sarathi.metrics.records import RunData
from sarathi.metrics.summary import prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
MAX_POINTS = 4000  # a scatter or line with more is thinned, and says so
LATENCIES = (("request_e2e_time", "end-to-end time (s)"), ("prefill_e2e_time", "time to first token (s)"))
NUM_BINS = 160  # of time, where a column is averaged
MIN_IN_MEDIAN = 8  # fewer requests than that have no median drawn

BLUE, ORANGE, GREEN, RED, GREY = "#3b6fb6", "#e8833a", "#3a9a6e", "#c8443f", "#6b7280"
COLORS = (BLUE, ORANGE, GREEN, RED, "#8465b5", "#8c6248", "#d774b0", "#4bb3c3", "#a3a531", "#333333")
LINE_STYLES = ("-", "--", ":")  # the next one where the colours have run out


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
        figure = _figure()
        caption = draw(figure, data)
        paths.append(_save(figure, directory / name, title, run_title(data.metadata), caption))
    return paths


def plot_comparison(runs: Mapping[str, RunData], path: str | Path) -> Path:
    """Overlay the CDFs of E2E time and TTFT of several runs, labelled by the keys of `runs`."""
    figure = _figure()
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
    machines = {_machine(data.metadata) for data in runs.values()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    caption = f"finished requests: {_range([len(data.requests['request_e2e_time']) for data in runs.values()])}"
    return _save(figure, path, "Schedulers compared", machines.pop() if len(machines) == 1 else "", caption, right=0.79)


def run_title(metadata: Mapping[str, object]) -> str:
    """'SARATHI · Qwen/Qwen3-8B on rtx_4090 (simulated)', as far as the metadata tell."""
    parts = [str(metadata.get("scheduler") or ""), _machine(metadata)]
    return " · ".join(part for part in parts if part)


def _machine(metadata: Mapping[str, object]) -> str:
    words = [str(word) for word in (metadata.get("model"), metadata.get("device")) if word]
    replicas = f", {metadata['num_replicas']} replicas" if "num_replicas" in metadata else ""
    return " on ".join(words) + replicas + (" (simulated)" if metadata.get("simulated") else "")


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
    return f"{len(data.requests['request_e2e_time']):,} finished requests"


def _mark_percentiles(ax: Axes, values: np.ndarray) -> None:
    for q in (50, 95, 99) if len(values) else ():
        value = float(np.percentile(values, q))
        ax.plot([value], [q / 100], "o", color=GREY, markersize=4, zorder=3)
        left = value > 0.6 * ax.get_xlim()[1]
        ax.annotate(
            f"P{q} {_seconds(value)}",
            (value, q / 100),
            xytext=(-7 if left else 7, 3 if left else -9),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=8.5,
            color="#374151",
        )


def _ttft_by_prompt_length(figure: Figure, data: RunData) -> str:
    ax = figure.subplots()
    lengths, ttft = data.requests["request_num_prefill_tokens"], data.requests["prefill_e2e_time"]
    shown = _thinned(len(ttft))
    alpha = 0.65 if len(ttft) < 500 else 0.25
    ax.scatter(lengths[shown], ttft[shown], s=16, color=BLUE, alpha=alpha, linewidths=0, label="one request")
    if len(ttft):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        edges = 2.0 ** np.arange(np.floor(np.log2(max(1, lengths.min()))), np.log2(lengths.max()) + 1.001)
        bucket = np.digitize(lengths, edges)
        points = [(b, ttft[bucket == b]) for b in np.unique(bucket)]
        points = [(edges[b - 1] * 2**0.5, np.median(values)) for b, values in points if len(values) >= MIN_IN_MEDIAN]
        if points:
            x, medians = zip(*points, strict=True)
            ax.plot(x, medians, "-o", color=RED, markersize=5, linewidth=1.8, label="median per doubling")
        _legend_above(ax)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="prompt length (tokens)", ylabel="time to first token (s)")
    return _thinned_caption(len(ttft), "finished requests")


def _round_time(figure: Figure, data: RunData) -> str:
    ax, side = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    end_times, milliseconds = data.rounds["end_time"], 1e3 * data.rounds["batch_execution_time"]
    shown = _thinned(len(milliseconds))
    alpha = 0.5 if len(shown) < 1000 else 0.2
    ax.scatter(end_times[shown], milliseconds[shown], s=7, color=BLUE, alpha=alpha, linewidths=0, label="one round")
    if len(milliseconds):
        centres, medians = _binned(end_times, milliseconds, np.median, NUM_BINS // 2)
        ax.plot(centres, medians, color=RED, linewidth=1.6, label="median over time")
        _legend_above(ax)
        top = float(np.percentile(milliseconds, 99.9)) * 1.1
        side.hist(milliseconds, bins=60, range=(0, top), orientation="horizontal", color=BLUE, alpha=0.8)
        ax.set_ylim(0, top)
    ax.set(xlabel="time (s)", ylabel="round time (ms)")
    side.set(xlabel="rounds")
    above = int((milliseconds > ax.get_ylim()[1]).sum())
    return _thinned_caption(len(milliseconds), "rounds") + (f"; {above} above the axis" if above else "")


def _queue_depth(figure: Figure, data: RunData) -> str:
    ax = figure.subplots()
    times, caption = data.rounds["end_time"], f"{len(data.rounds['end_time']):,} rounds"
    for name, color in (("waiting", ORANGE), ("running", BLUE)):
        x, y = times, data.rounds[f"num_{name}"]
        if len(y) > MAX_POINTS:
            x, y = _binned(times, y, np.max, MAX_POINTS // 4)
            caption = f"highest value in each of {MAX_POINTS // 4:,} time slices of {len(times):,} rounds"
        ax.fill_between(x, y, step="post", color=color, alpha=0.18, linewidth=0)
        ax.step(x, y, where="post", color=color, linewidth=1.4, label=name)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    ax.set(xlabel="time (s)", ylabel="requests after the round was filled")
    _legend_above(ax)
    return caption


def _tokens_per_round(figure: Figure, data: RunData) -> str:
    ax, side = figure.subplots(1, 2, width_ratios=(4, 1))
    times = data.rounds["scheduled_time"]
    decode, prefill = data.rounds["batch_num_decode_tokens"], data.rounds["batch_num_prefill_tokens"]
    caption = f"{len(times):,} rounds"
    if len(times):
        x, mean_decode = _binned(times, decode, np.mean, NUM_BINS)
        _, mean_prefill = _binned(times, prefill, np.mean, NUM_BINS)
        labels = ("decode tokens", "prefill tokens")
        ax.stackplot(x, mean_decode, mean_prefill, labels=labels, colors=(BLUE, ORANGE), alpha=0.85, linewidth=0)
        ax.margins(x=0.01)
        _legend_above(ax)
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
    known = np.flatnonzero(np.isfinite(data.rounds["predicted_time"]))
    shown = known[_thinned(len(known))]
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
    _legend_above(over_time)
    share = prediction(data)["share_within_5_percent"]
    aim = "" if share is None else f"; {100 * share:.0f} % within 5 % of the target"
    return _thinned_caption(len(known), "rounds with prefills") + aim


# ---- shared pieces


def _figure() -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(9, 4.2), dpi=DPI, facecolor="white")


def _save(figure: Figure, path: Path, title: str, run: str, caption: str, right: float = 0.98) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#9ca3af")
        ax.tick_params(which="both", color="#9ca3af", labelsize=9)
        ax.grid(True, color="#e5e7eb", linewidth=0.7)
        ax.set_axisbelow(True)
    figure.subplots_adjust(left=0.08, right=right, top=0.84, bottom=0.17, wspace=0.09)
    figure.text(0.012, 0.965, title, va="top", fontsize=12, fontweight="bold", color="#111827")
    figure.text(0.988, 0.96, run, va="top", ha="right", fontsize=9.5, color="#374151")
    figure.text(0.988, 0.015, caption, ha="right", fontsize=8, color=GREY)
    figure.savefig(path)
    return path


def _cdf(ax: Axes, values: np.ndarray, color: str, label: str, style: str = "-") -> None:
    values = np.sort(values)
    share = np.arange(1, len(values) + 1) / max(len(values), 1)
    shown = _thinned(len(values))
    ax.step(values[shown], share[shown], where="post", color=color, linestyle=style, linewidth=1.8, label=label)


def _legend_above(ax: Axes) -> None:
    legend = ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.985), fontsize=9, borderaxespad=0)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _percent_axis(ax: Axes) -> None:
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f}%")


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _seconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _thinned(n: int) -> np.ndarray:
    """Indices of at most MAX_POINTS of n points, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, n - 1, min(n, MAX_POINTS)).astype(int)) if n else np.empty(0, dtype=int)


def _thinned_caption(n: int, what: str) -> str:
    return f"{n:,} {what}" + (f", {MAX_POINTS:,} of them drawn" if n > MAX_POINTS else "")


def _binned(
    times: np.ndarray, values: np.ndarray, reduce: Callable[[np.ndarray], float], num_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """(centres, reduce(values)) of the non-empty ones of `num_bins` equal slices of time."""
    order = np.argsort(times, kind="stable")  # replicas' rounds stand in the order of their ends
    times, values = times[order], values[order]
    edges = np.linspace(times[0], times[-1], num_bins + 1)
    starts = np.searchsorted(times, edges[:-1])
    ends = np.append(starts[1:], len(times))
    full = ends > starts
    centres = (edges[:-1] + edges[1:]) / 2
    reduced = [reduce(values[a:b]) for a, b in zip(starts[full], ends[full], strict=True)]
    return centres[full], np.array(reduced, dtype=float)
