"""Table 10's readings of the paper's setup as cases, and what is measured of a run. Knows no table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.cases import Case, Workload, scheduler_flags
from benchmarks.harness.options import Options
from benchmarks.harness.run import Figures, finished_requests, latencies
from sarathi.metrics.run_folder import read_run
from sarathi.metrics.run_record import RunRecord

DEVICE, BUDGET, SEATS, C_MAX, L_MIN = "rtx_pro_5000_72gb", 512, 32, 6, 16
PROFILES = ("lean", "sarathi_2024")
PENALTIES = {"paper": (1.0, 2.5), "script": (4.0, 1.5)}  # lambda_under, lambda_over
ARRIVALS = {"100/s": (0.01, 0.01), "scripted": (0.025, 0.001)}  # seconds between requests, and within the burst
BELOW, PRINTED_TARGET, SCRIPT_TARGET = 10.0, 105.0, 100.0  # ms; the first is below any round
SWEEP = (BELOW, 20.0, 22.0, 25.0, 30.0, 32.0, 35.0, 40.0, 60.0, PRINTED_TARGET)  # ms
OFF, ON = "LPRS", "LPRS_APC"

# The paper's names of its rows.
LATENCIES = ("mean_request_e2e_s", "mean_prefill_e2e_s", "p90_request_e2e_s", "p90_prefill_e2e_s")
DYNAMICS = ("avg_scheduled_prefill_seqs", "avg_prefill_chunk_size")
COUNTERS = ("blocked_by_activity_cap", "blocked_by_min_effective_chunk")

ROUND_COLUMNS = (
    *("num_prefills", "batch_num_prefill_tokens", "batch_num_decode_tokens", "batch_execution_time", "num_waiting"),
    *("num_running", "prefill_cap", "num_refused_by_cap", "num_refused_by_min_chunk", "num_warm_starts"),
)


class Reading(NamedTuple):
    """One reading of the setup, run without and with APC."""

    requests: int
    arrivals: str
    profile: str
    target_ms: float
    penalties: str = "paper"
    cap_scope: str = "round"
    on_defer: str = "pause"

    def text(self) -> str:
        words = [f"{self.requests:,}", self.arrivals, self.profile, f"{self.target_ms:g} ms", self.penalties]
        return ", ".join([*words, *(w for w in (self.cap_scope, self.on_defer) if w not in ("round", "pause"))])


AS_PRINTED = Reading(1000, "100/s", "lean", PRINTED_TARGET)
AS_SCRIPTED = Reading(240, "scripted", "lean", SCRIPT_TARGET, "script")
READINGS = (
    Reading(1000, "100/s", "lean", BELOW),
    Reading(1000, "100/s", "lean", BELOW, "script"),
    Reading(1000, "100/s", "sarathi_2024", BELOW),
    Reading(1000, "100/s", "sarathi_2024", BELOW, cap_scope="unfinished"),
    Reading(1000, "100/s", "sarathi_2024", BELOW, on_defer="release"),
    Reading(1000, "scripted", "lean", BELOW),
    Reading(1000, "scripted", "sarathi_2024", BELOW),
    Reading(240, "scripted", "lean", BELOW),
    AS_PRINTED,
    AS_PRINTED._replace(profile="sarathi_2024"),
    Reading(1000, "100/s", "lean", SCRIPT_TARGET, "script"),
    AS_SCRIPTED,
    AS_SCRIPTED._replace(profile="sarathi_2024"),
)
# A real device has one speed, and time for few.
REAL_READINGS = (READINGS[0], AS_PRINTED, Reading(1000, "100/s", "lean", SCRIPT_TARGET, "script"))


def workload(requests: int, arrivals: str) -> Workload:
    """The paper's two kinds of prompt."""
    prefix = "--heterogeneous_request_generator_config"
    interval, in_burst = ARRIVALS[arrivals]
    return Workload(
        f"{requests:,} requests, {arrivals}",
        ("--request_generator_config_type=HETEROGENEOUS", f"{prefix}_num_requests={requests}"),
        {f"{prefix}_interval": interval, f"{prefix}_burst_interval": in_burst},
        (f"{prefix}_num_requests=40",),
    )


def readings_of(options: Options) -> tuple[tuple[Reading, ...], tuple[Reading, ...]]:
    """The readings that a backend runs, and those of its sweep of targets, some of which are the same."""
    if options.backend != "sim":
        return REAL_READINGS, ()
    targets = SWEEP[:: 6 if options.quick else 1]
    return READINGS, tuple(Reading(1000, "100/s", profile, target) for profile in PROFILES for target in targets)


def cases_of(options: Options) -> list[Case]:
    """All cases; plain Sarathi and APC without LPRS come first, and a real device's load is scaled by the former."""
    readings = [reading for part in readings_of(options) for reading in part]
    schedulers = {"SARATHI": {}, "APC": {"c_max": C_MAX, "l_min": L_MIN}}
    if options.backend != "sim":
        del schedulers["APC"]
    yardsticks = [
        _case({"requests": 1000, "arrivals": "100/s", "profile": profile, "scheduler": scheduler}, settings)
        for profile in dict.fromkeys(reading.profile for reading in readings)
        for scheduler, settings in schedulers.items()
    ]
    return [*yardsticks, *(case for reading in dict.fromkeys(readings) for case in _cases(reading, options))]


def _cases(reading: Reading, options: Options) -> Iterator[Case]:
    """LPRS without and with APC."""
    under, over = PENALTIES[reading.penalties]
    lprs = {
        "target_ms": reading.target_ms,
        "lambda_under": under,
        "lambda_over": over,
        "predictor_file": options.predictor(DEVICE, reading.profile),
    }
    apc = {"c_max": C_MAX, "l_min": L_MIN, "cap_scope": reading.cap_scope, "on_defer": reading.on_defer}
    for scheduler, settings in ((OFF, lprs), (ON, lprs | apc)):
        yield _case({**reading._asdict(), "scheduler": scheduler}, settings)


def _case(labels: dict[str, Any], settings: dict[str, Any]) -> Case:
    return Case(
        labels,
        workload(labels["requests"], labels["arrivals"]),
        scheduler_flags(labels["scheduler"], BUDGET, SEATS, **settings),
        device=DEVICE,
        profile=labels["profile"],
        system=("--model_config_max_model_len=256",),
    )


def measure(record: RunRecord) -> Figures:
    """Table 10's figures by the paper's names, rounds that its counters may have meant, and times by request."""
    assert record.directory is not None
    finished = finished_requests(record, "arrival_time", "request_e2e_time", "prefill_e2e_time")
    e2e, ttft = finished["request_e2e_time"], finished["prefill_e2e_time"]
    return {
        **latencies(record),
        **latency_rows(e2e, ttft),
        **round_figures(read_run(record.directory, round_columns=ROUND_COLUMNS).rounds),
        "itl_mean_ms": 1e3 * record.summary["decode_token_execution_plus_preemption_time"]["mean"],
        "arrival": finished["arrival_time"],
        "e2e": e2e,
        "ttft": ttft,
    }


def latency_rows(e2e: np.ndarray, ttft: np.ndarray) -> dict[str, float]:
    """The paper's four rows of latency, from times by request, seconds."""
    p90 = (float(np.quantile(times, 0.9)) for times in (e2e, ttft))
    return dict(zip(LATENCIES, (float(e2e.mean()), float(ttft.mean()), *p90), strict=True))


def round_figures(rounds: dict[str, np.ndarray]) -> Figures:
    """Dynamics and counters of one run, from its rounds' columns; waiting is what a round, once made, left waiting."""
    prefills, tokens, seconds = (rounds[name] for name in ROUND_COLUMNS[:2] + ROUND_COLUMNS[3:4])
    decodes = np.where(prefills == 0, rounds["batch_num_decode_tokens"], -1)
    waiting = rounds["num_waiting"] > 0
    no_seat, no_cap = rounds["num_running"] >= SEATS, rounds["prefill_cap"] == 0
    counts = {
        COUNTERS[0]: rounds["num_refused_by_cap"].sum(),
        COUNTERS[1]: rounds["num_refused_by_min_chunk"].sum(),
        "warm_starts": rounds["num_warm_starts"].sum(),
        "rounds": len(prefills),
        "rounds_waiting": waiting.sum(),
        "rounds_waiting_no_seat": (waiting & no_seat).sum(),
        "rounds_waiting_c_t_0": (waiting & no_cap).sum(),
        "rounds_waiting_either": (waiting & (no_seat | no_cap)).sum(),
    }
    return {
        DYNAMICS[0]: float(prefills.mean()),
        DYNAMICS[1]: float((tokens / np.maximum(prefills, 1)).mean()),
        "chunk_of_accepted": float(tokens.sum() / prefills.sum()),
        **{name: int(count) for name, count in counts.items()},
        "round_ms": 1e3 * float(seconds.mean()),
        "decode_only_ms": 1e3 * float(seconds[decodes == decodes.max()].mean()),
    }
