"""One run as a comparison needs it: settings, seeds, summary, which requests it was sent and how those that finished
fared. Knows a run's files and nothing of other runs but how two workloads differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sarathi.metrics.headline import E2E, TPOT, TTFT
from sarathi.metrics.run_folder import RunFolder, read_run

# Settings that change no result: where files go, and which.
_SILENT = ("output_dir", "log_level", "write_json_trace", "enable_profiling")
_SILENT_METRICS = ("wandb_", "write_metrics", "plots", "report", "enable_chrome_trace", "keep_individual_batch_metrics")
_NOT_A_SEED = "model_config.seed"  # of dummy weights and sampling: no generator's, and never left to the run's
_SAME_TIME = 1e-6  # seconds
_ASKED = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
PROMPT_LENGTH, OUTPUT_LENGTH = "request_num_prefill_tokens", "request_num_decode_tokens"
_COLUMNS = ("request_id", "status", "arrival_time", PROMPT_LENGTH, OUTPUT_LENGTH, E2E, TTFT, TPOT)


@dataclass(frozen=True)
class Workload:
    """What was sent, sorted by request id: arrival in seconds, prompt and asked output lengths in tokens (NaN where
    the files do not tell)."""

    request_ids: np.ndarray
    arrival_times: np.ndarray
    prompt_lengths: np.ndarray
    output_lengths: np.ndarray


@dataclass(frozen=True)
class ComparedRun:
    """`settings`: config.yaml by dotted key, without seeds and what changes no result. `seeds`: likewise, those left
    to the run resolved. `finished`: columns of finished requests, request_id among them.
    `token_gaps`: (seconds, counts)."""

    path: Path
    settings: dict[str, Any]
    seeds: dict[str, int]
    summary: dict[str, Any]
    workload: Workload
    finished: dict[str, np.ndarray]
    token_gaps: tuple[np.ndarray, np.ndarray]

    def count(self, what: str) -> int:
        """`num_<what>` of the summary; 0 where it has none."""
        return int(self.summary.get(f"num_{what}") or 0)


RunPair = tuple[ComparedRun, ComparedRun]  # of the baseline, and of what is compared with it


def load_run(path: Path) -> ComparedRun:
    """The run in folder `path`. Raises ValueError, one line that names the folder and what is missing or broken."""
    folder = read_run(path, _COLUMNS)
    try:
        finished = folder.requests["status"] == "finished"
        columns = {name: folder.requests[name][finished] for name in ("request_id", PROMPT_LENGTH, E2E, TTFT, TPOT)}
        scheduler = str(folder.summary["scheduler"])
        workload = _workload(folder)
        token_gaps = folder.token_gaps
    except KeyError as error:
        raise ValueError(f"{path}: its summary.json, requests.json or a table lacks {error}") from None
    columns["request_id"] = columns["request_id"].astype(str)
    for ids in (workload.request_ids, columns["request_id"]):
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"{path}: a request id stands twice, so that requests cannot be told apart")
    settings, seeds = _settings_and_seeds(folder.config, folder.summary)
    return ComparedRun(
        path=path,
        settings={"scheduler": scheduler, **settings},
        seeds=seeds,
        summary=folder.summary,
        workload=workload,
        finished=columns,
        token_gaps=token_gaps,
    )


def _workload(folder: RunFolder) -> Workload:
    """From requests.json, else from requests.csv, which tells an output length only of requests that finished."""
    path = folder.path / "requests.json"
    if path.is_file():
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            ids = np.array([str(row["request_id"]) for row in rows], dtype=str)
            columns = [np.array([row[name] for row in rows], dtype=float) for name in _ASKED]
            if any(column.ndim != 1 for column in columns):
                raise ValueError("a cell is a list")
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is broken ({error})") from None
    else:
        table = folder.requests
        ids = table["request_id"].astype(str)
        output = np.where(table["status"] == "finished", table[OUTPUT_LENGTH], np.nan)
        columns = [table["arrival_time"], table[PROMPT_LENGTH], output]
    order = np.argsort(ids)
    return Workload(ids[order], *(column[order] for column in columns))


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _settings_and_seeds(config: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    run_seed = config.get("seed", summary.get("seed"))
    settings, seeds = {}, {}
    for key, value in _flat(config):
        section, _, name = key.rpartition(".")
        if (name == "seed" or name.endswith("_seed")) and key != _NOT_A_SEED:
            seeds[key] = run_seed if value is None else value
        elif key not in _SILENT and not (section == "metrics_config" and name.startswith(_SILENT_METRICS)):
            settings[key] = value
    return settings, seeds


def have_same_seeds(a: ComparedRun, b: ComparedRun) -> bool:
    """Whether all seeds that both have are equal."""
    return all(a.seeds[key] == b.seeds[key] for key in a.seeds.keys() & b.seeds.keys())


def workload_differences(a: ComparedRun, b: ComparedRun) -> list[str]:
    """A line for each way in which the requests that the two runs were sent differ; none where they are the same.

    Ids, arrival times and lengths are looked at, not the texts of prompts.
    """
    first, other = a.workload, b.workload
    if np.array_equal(first.request_ids, other.request_ids):
        i = j = np.arange(len(first.request_ids))
    else:
        _, i, j = np.intersect1d(first.request_ids, other.request_ids, assume_unique=True, return_indices=True)
    num_common, counts = len(i), (len(first.request_ids), len(other.request_ids))
    lines = []
    if counts[0] != counts[1]:
        lines.append(f"number of requests differs ({counts[0]:,} and {counts[1]:,})")
    if num_common < max(counts):
        lines.append(f"request ids differ ({num_common:,} in common)")
    off = np.abs(first.arrival_times[i] - other.arrival_times[j])
    if (off > _SAME_TIME).any():
        lines.append(
            f"arrival times differ ({int((off > _SAME_TIME).sum()):,} of {num_common:,} requests, by up to "
            f"{off.max():.3g} s)"
        )
    for what, lengths, other_lengths in (
        ("prompt lengths differ", first.prompt_lengths[i], other.prompt_lengths[j]),
        ("asked output lengths differ", first.output_lengths[i], other.output_lengths[j]),
    ):
        off = np.abs(lengths - other_lengths)  # NaN where one side does not tell
        if (off > 0).any():  # so something is known
            lines.append(
                f"{what} ({int((off > 0).sum()):,} of {num_common:,} requests, by up to {np.nanmax(off):,.0f} tokens)"
            )
    return lines


def machine_differences(a: ComparedRun, b: ComparedRun) -> list[str]:
    """A line for each way in which model or device of the two runs differ."""
    lines = [
        f"{name} differs ({a.summary.get(name)} and {b.summary.get(name)})"
        for name in ("model", "device")
        if a.summary.get(name) != b.summary.get(name)
    ]
    if a.summary.get("simulated") != b.summary.get("simulated"):
        which = ["simulated" if run.summary.get("simulated") else "real" for run in (a, b)]
        lines.append(f"a {which[0]} run against a {which[1]} one")
    return lines
