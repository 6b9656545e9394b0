"""Engines of `make bench-engine` at work beside each other, in turns, and what their answers come to.

Knows no engine by name: `reference` is the label that others are compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest
from benchmarks.engine_rivals import EngineFailedError, Rival, RunningEngine

Answers = Sequence[Answer]
LATENCIES = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "ITL P50", "ITL P99")


class Entry(NamedTuple):
    """An engine of a comparison."""

    rival: Rival
    settings: EngineSettings
    num_turns: int | None = None  # at most; None: every turn
    num_requests: int | None = None  # the job's first ones; None: all


class Engines:
    """Those that run, by label. One that cannot be started, or fails, is told of in a line, ended and left out."""

    def __init__(self) -> None:
        self._running: dict[str, RunningEngine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._running.values():
            engine.stop()

    def __contains__(self, label: str) -> bool:
        return label in self._running

    def start(self, entries: Mapping[str, Entry]) -> None:
        for label, entry in entries.items():
            try:
                self._running[label] = entry.rival.start(entry.settings)
            except EngineFailedError as error:
                print(f"  {label}: left out: {error}", flush=True)
            else:
                print(f"  {label}: {self._running[label].name}", flush=True)

    def run(self, label: str, jobs: Sequence[JobRequest], streamed: bool = False) -> list[Answer] | None:
        """None where it fails."""
        try:
            return self._running[label].run(jobs, streamed)
        except EngineFailedError as error:
            print(f"  {label}: failed and left out: {error}", flush=True)
            self._running.pop(label).stop()
            return None


def in_turns(
    entries: Mapping[str, Entry], jobs: Sequence[JobRequest], num_turns: int, streamed: bool = False
) -> dict[str, list[list[Answer]]]:
    """Answers of each turn by label, in the order of `entries`, of those that did not fail in any.

    The order is reversed in every second turn.
    """
    answers: dict[str, list[list[Answer]]] = {}
    with Engines() as engines:
        engines.start(entries)
        for label in entries:
            if label in engines:
                engines.run(label, [JobRequest(job.prompt_token_ids[:8], 4) for job in jobs[:8]], streamed)  # warm up
        for turn in range(num_turns):
            order = [label for label, entry in entries.items() if entry.num_turns is None or turn < entry.num_turns]
            for label in reversed(order) if turn % 2 else order:
                if label in engines:
                    given = engines.run(label, jobs[: entries[label].num_requests], streamed)
                    if given is None:
                        answers.pop(label, None)
                    else:
                        answers.setdefault(label, []).append(given)
                        print(f"turn {turn + 1}: {label:<24}{output_rate(given):8.1f} output tokens/s", flush=True)
    return {label: answers[label] for label in entries if label in answers}


def output_rate(answers: Answers) -> float:
    """Output tokens per second, from the job's start to the last token."""
    return sum(len(a.token_times) for a in answers) / max(a.token_times[-1] for a in answers)


def rate_table(answers: Mapping[str, Sequence[Answers]], reference: str) -> list[str]:
    """Medians and ranges over turns; ratios are of one turn. Without the reference there is nothing to compare with."""
    own = answers.get(reference)
    lines = [f"{'output tokens/s':<24}{'median':>8}{'least - most':>16}{'turns':>7}"]
    if own is not None:
        lines[0] += f"{reference + ' / it':>12}{'least - most':>14}  same tokens as {reference}"
    for label, turns in answers.items():
        rates = [output_rate(turn) for turn in turns]
        line = f"{label:<24}{statistics.median(rates):>8.1f}{_range(rates, 1):>16}{len(turns):>7}"
        if own is not None:
            ratios = [output_rate(mine) / rate for mine, rate in zip(own, rates, strict=False)]
            pairs = [pair for mine, its in zip(own, turns, strict=False) for pair in zip(mine, its, strict=False)]
            same = sum(mine.token_ids == its.token_ids for mine, its in pairs)
            line += f"{statistics.median(ratios):>12.2f}{_range(ratios, 2):>14}  {same} of {len(pairs)} requests"
        lines.append(line)
    return lines


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} - {max(values):.{digits}f}"


def latency_table(jobs: Sequence[JobRequest], answers: Mapping[str, Sequence[Answers]]) -> list[str]:
    """Percentiles over all turns of an engine together, and its median output tokens per second."""
    lines = [f"{'seconds':<24}{'turns':>6}" + "".join(f"{name:>10}" for name in LATENCIES) + f"{'tokens/s':>10}"]
    for label, turns in answers.items():
        figures = "".join(f"{figure:>10.3f}" for figure in latencies(jobs, turns))
        rate = statistics.median(output_rate(turn) for turn in turns)
        lines.append(f"{label:<24}{len(turns):>6}{figures}{rate:>10.1f}")
    return lines


def latencies(jobs: Sequence[JobRequest], turns: Sequence[Answers]) -> list[float]:
    """P50 and P99, in seconds, of time to first token, time per output token of a request, and inter-token latency."""
    pairs = [pair for turn in turns for pair in zip(jobs, turn, strict=True)]
    ttft = [answer.token_times[0] - job.arrival_time for job, answer in pairs]
    spans = [answer.token_times for _, answer in pairs if len(answer.token_times) > 1]
    tpot = [(times[-1] - times[0]) / (len(times) - 1) for times in spans]
    itl = [gap for times in spans for gap in np.diff(times)]
    return [float(np.percentile(values or [np.nan], q)) for values in (ttft, tpot, itl) for q in (50, 99)]
