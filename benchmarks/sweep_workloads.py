"""The four workloads of `make sweep`; two of them have lengths drawn from tables of published traces' quantiles.

`python -m benchmarks.sweep_workloads code=FILE arxiv=FILE` makes those tables from the traces.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import STATIC_INTERVAL, Workload
from sarathi.errors import InputError
from sarathi.metrics.sinks import write_text

TABLES_FILE = Path(__file__).parent / "configs" / "trace_lengths.json"
SOURCES = {
    "code": "Azure's code completion trace of 2023, published with Splitwise (Patel et al., ISCA 2024)",
    "arxiv": "arxiv-summarization (Cohan et al., NAACL 2018) in Llama 2 tokens, requests of at most 4,096, published "
    "with Sarathi-Serve (Agrawal et al., OSDI 2024)",
}
TRACE_FILES = {
    "code": "splitwise_code.csv",
    "arxiv": "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
}
LEVELS = (0.0, 0.01, *(round(0.05 * i, 2) for i in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
NUM_DRAWN = 5000  # lengths in a file; a run takes some of them in an order of its seed
MAX_PROMPT_TOKENS = 8192
MAX_REDUCED_PROMPT_TOKENS = 512
MAX_OUTPUT_TOKENS = 512  # as in the paper's runs


def length_tables() -> dict[str, dict[str, Any]]:
    """By workload: source, and quantiles of prompt and output lengths with their rank correlation."""
    return json.loads(TABLES_FILE.read_text(encoding="utf-8"))


def read_lengths(path: Path) -> np.ndarray:
    """Prompt and output lengths of a CSV file, a row a request."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(float(row["num_prefill_tokens"]), float(row["num_decode_tokens"])) for row in csv.DictReader(file)]
    return np.array(rows)


def tabulate(lengths: np.ndarray) -> dict[str, Any]:
    """Quantiles of both columns at LEVELS and Spearman's correlation of them."""
    prompts, outputs = (np.round(np.quantile(column, LEVELS), 1).tolist() for column in lengths.T)
    correlation = round(rank_correlation(lengths), 4)
    return {"levels": [*LEVELS], "prompt_tokens": prompts, "output_tokens": outputs, "rank_correlation": correlation}


def rank_correlation(pairs: np.ndarray) -> float:
    """Spearman's, with the mean rank where values are equal."""
    ranks = []
    for column in pairs.T:
        _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(ranks)[0, 1])


def draw_lengths(table: dict[str, Any], num_requests: int, seed: int) -> np.ndarray:
    """Whole prompt and output lengths by inverse transform, correlated through a Gaussian copula."""
    # Of two normal variables with correlation r, Spearman's is 6 / pi * asin(r / 2).
    r = 2 * np.sin(np.pi / 6 * table["rank_correlation"])
    normal = np.random.default_rng(seed).standard_normal((num_requests, 2))
    normal[:, 1] = r * normal[:, 0] + np.sqrt(1 - r * r) * normal[:, 1]
    uniform = np.vectorize(statistics.NormalDist().cdf)(normal)
    columns = [
        np.interp(uniform[:, i], table["levels"], table[name])
        for i, name in enumerate(("prompt_tokens", "output_tokens"))
    ]
    return np.maximum(1, np.rint(np.stack(columns, axis=1))).astype(int)


def write_lengths(path: Path, lengths: np.ndarray) -> Path:
    write_text(path, "num_prefill_tokens,num_decode_tokens\n" + "".join(f"{p},{d}\n" for p, d in lengths))
    return path


def trace_path(name: str, directory: Path, traces: Path | None) -> Path:
    """The published trace in `traces`, or lengths drawn from its quantiles, written into `directory`."""
    if traces is not None:
        path = traces / TRACE_FILES[name]
        if not path.is_file():
            raise InputError(f"--traces: {path} is missing")
        return path
    return write_lengths(directory / f"sweep-lengths-{name}.csv", draw_lengths(length_tables()[name], NUM_DRAWN, 0))


def conversations(name: str, turns: str, num_requests: int, reduced: tuple[int, int]) -> Workload:
    """ShareGPT's turns, `num_requests` of them drawn by the seed; `reduced`: requests and longest output."""
    prefix = "--sharegpt_request_generator_config"
    return Workload(
        name,
        (
            "--request_generator_config_type=SHAREGPT",
            f"{prefix}_turns={turns}",
            f"{prefix}_shuffle=true",
            f"{prefix}_num_requests={num_requests}",
            f"{prefix}_max_prompt_tokens={MAX_PROMPT_TOKENS}",
            f"{prefix}_max_output_tokens={MAX_OUTPUT_TOKENS}",
        ),
        reduced=(
            f"{prefix}_num_requests={reduced[0]}",
            f"{prefix}_max_output_tokens={reduced[1]}",
            f"{prefix}_max_prompt_tokens={MAX_REDUCED_PROMPT_TOKENS}",
        ),
    )


def trace_lengths(name: str, path: Path, num_requests: int, reduced: int) -> Workload:
    """Requests with lengths of a trace, in an order drawn by the seed."""
    return Workload(
        name,
        (
            "--request_generator_config_type=SYNTHETIC",
            f"--synthetic_request_generator_config_num_requests={num_requests}",
            "--length_generator_config_type=TRACE",
            f"--trace_request_length_generator_config_trace_file={path}",
            f"--trace_request_length_generator_config_max_tokens={2 * MAX_PROMPT_TOKENS}",
            f"--trace_request_length_generator_config_max_output_tokens={MAX_OUTPUT_TOKENS}",
        ),
        reduced=(f"--synthetic_request_generator_config_num_requests={reduced}",),
    )


def at_once(workload: Workload, num_requests: int) -> Workload:
    """`num_requests` of the same kind, all there from the start."""
    number = next(flag.split("=")[0] for flag in workload.flags if "num_requests" in flag)
    flags = (f"{number}={num_requests}", "--interval_generator_config_type=STATIC", f"{STATIC_INTERVAL}=0")
    return _arriving(workload, *flags)


def poisson(workload: Workload, qps: float) -> Workload:
    """The same requests, `qps` a second."""
    rate = f"--poisson_request_interval_generator_config_qps={qps:.6g}"
    return _arriving(workload, "--interval_generator_config_type=POISSON", rate)


def _arriving(workload: Workload, *flags: str) -> Workload:
    return Workload(workload.name, (*workload.flags, *flags), reduced=workload.reduced)


def main(argv: Sequence[str] | None = None) -> None:
    traces = dict(argument.split("=", 1) for argument in (sys.argv[1:] if argv is None else argv))
    if sorted(traces) != sorted(SOURCES):
        sys.exit(f"usage: python -m benchmarks.sweep_workloads {' '.join(f'{name}=FILE' for name in SOURCES)}")
    tables = {}
    for name, source in SOURCES.items():
        lengths = read_lengths(Path(traces[name]))
        tables[name] = {"source": source, "requests": len(lengths), **tabulate(lengths)}
    write_text(TABLES_FILE, json.dumps(tables, indent=1).replace("\n   ", " ").replace("\n  ]", "]") + "\n")


if __name__ == "__main__":
    main()
