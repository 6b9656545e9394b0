"""Table 5's readings and how near each comes to the paper: levels up to a constant, and at the paper's own speed.

Knows the runs and the paper's rows, not how they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import Mean, Offset, Verdict, fit_offset, verdict
from benchmarks.paper import paper, policy_change, row
from benchmarks.table4_readings import COLUMNS as LATENCIES

Setting = tuple[int, int]  # (chunk, seats)

SETTINGS: tuple[Setting, ...] = ((256, 10), (256, 32), (512, 32))
ALPHAS = (150.0, 30.0)  # of weight bases 500 and 100; the first is that of Table 4
ONE_GPU, ONE_WORKER = "one GPU", "one worker"  # the former simulated, the latter real


@dataclass(frozen=True)
class Reading:
    """How the paper's setup may be meant; alpha apart."""

    system: str
    profile: str
    outputs: str

    @property
    def name(self) -> str:
        if self.system == ONE_WORKER:  # a real engine is its own profile
            return self.system
        return f"{self.system}, {self.profile}" + ("" if self.outputs == "exact" else f", {self.outputs}")

    @property
    def labels(self) -> dict[str, str]:
        return {"outputs": self.outputs, "system": self.system, "profile": self.profile}


def round_ms(e2e_s: float, ttft_s: float, num_tokens: float) -> float:
    """Milliseconds between output tokens: the first comes at TTFT, the last of `num_tokens` at E2E."""
    return 1e3 * (e2e_s - ttft_s) / (num_tokens - 1)


def at_speed(arrivals: np.ndarray, latencies: np.ndarray, slower: float) -> np.ndarray:
    """Latencies of a run that is never idle, were each of its rounds `slower` times as long: what ends at arrival +
    latency ends later by that factor, arrivals stay."""
    return slower * (arrivals + latencies) - arrivals


def paper_row(setting: Setting, policy: str) -> dict[str, Any]:
    return row("table5", **_labels(setting), policy=policy)


def paper_round(figures: dict[str, Any], of: str = "mean") -> float:
    """Milliseconds a decode round, by E2E less TTFT of a row; all its requests have the largest output."""
    return round_ms(figures[f"{of}_e2e_s"], figures[f"{of}_ttft_s"], paper()["setup"]["aging"]["max_output_tokens"])


def paper_change(setting: Setting, column: str = "mean_e2e_s") -> float:
    """Of Aging against FCFS, percent."""
    return policy_change("table5", column, **_labels(setting))


def _labels(setting: Setting) -> dict[str, int]:
    """What the paper's rows of it are called by."""
    return dict(zip(("chunk", "max_seqs"), setting, strict=True))


@dataclass(frozen=True)
class Fit:
    """A row of the paper beside ours: four figures each, the constant between them, and the same with our rounds made
    as long as the paper's row says."""

    case: Case
    theirs: list[float]
    ours: list[float]
    offset: Offset
    slower: float  # the paper's mean decode round over ours
    offset_at_speed: Offset


class Results:
    """Runs and fits by reading; `ranked` holds the readings nearest to the paper first, `judged` those of them that are
    on two GPUs, if any, since the paper's are."""

    def __init__(self, runs: Runs, readings: Sequence[Reading], alphas: Sequence[float]) -> None:
        self.runs = runs
        self.alphas = alphas
        self.fits = {
            reading: {(*setting, policy): self._fit(reading, setting, policy) for setting in SETTINGS
                      for policy in ("FCFS", "AGING")}
            for reading in readings
        }  # fmt: skip
        self.exact = [reading for reading in readings if reading.outputs == "exact"]
        self.ranked = sorted(readings, key=self.rest)
        self.judged = [reading for reading in self.ranked if reading.system != ONE_GPU] or self.ranked

    def case(self, reading: Reading, setting: Setting, policy: str, alpha: float = ALPHAS[0]) -> Case:
        chunk, seats = setting
        alphas = {"alpha": alpha} if policy == "AGING" else {}
        return self.runs.find(**reading.labels, chunk=chunk, seqs=seats, policy=policy, **alphas)

    def rest(self, reading: Reading) -> float:
        """Root mean square of what differs over all rows after one constant a row."""
        differences = [
            theirs - ours - fit.offset.constant
            for fit in self.fits[reading].values()
            for theirs, ours in zip(fit.theirs, fit.ours, strict=True)
        ]
        return float(np.sqrt(np.mean(np.square(differences))))

    def rounds(self, reading: Reading) -> list[tuple[float, float]]:
        """(seats, mean decode round in ms) of FCFS at chunk 256."""
        cases = ((seats, self.case(reading, (chunk, seats), "FCFS")) for chunk, seats in SETTINGS[:2])
        return [(seats, self.runs.mean(case, "decode_round_ms").value) for seats, case in cases]

    def change(self, reading: Reading, setting: Setting, column: str, alpha: float = ALPHAS[0]) -> Mean:
        """Of Aging against FCFS, percent."""
        fcfs, aging = (self.case(reading, setting, policy, alpha) for policy in ("FCFS", "AGING"))
        return self.runs.change(fcfs, aging, column)

    def verdicts(self, reading: Reading, alpha: float) -> list[Verdict]:
        """Of what Aging changes of mean E2E, by setting."""
        return [verdict(paper_change(s), self.change(reading, s, "mean_e2e_s", alpha)) for s in SETTINGS]

    def _fit(self, reading: Reading, setting: Setting, policy: str) -> Fit:
        case, printed = self.case(reading, setting, policy), paper_row(setting, policy)
        theirs = [printed[column] for column in LATENCIES]
        ours = [self.runs.mean(case, column).value for column in LATENCIES]
        slower = paper_round(printed) / self.runs.mean(case, "decode_round_ms").value
        at = np.mean([_four(figures, slower) for figures in self.runs.of(case)], axis=0)
        return Fit(case, theirs, ours, fit_offset(theirs, ours), slower, fit_offset(theirs, at.tolist()))


def _four(figures: dict[str, Any], slower: float) -> np.ndarray:
    """The figures of LATENCIES at another speed."""
    scaled = [at_speed(figures["arrivals"], figures[name], slower) for name in ("e2e", "ttft")]
    return np.array([value for x in scaled for value in (np.mean(x), np.percentile(x, 95))])


def paper_rounds() -> list[tuple[float, float]]:
    """(seats, mean decode round in ms) that follow from the paper's FCFS rows at chunk 256."""
    return [(seats, paper_round(paper_row((chunk, seats), "FCFS"))) for chunk, seats in SETTINGS[:2]]
