"""`make crumbs`: LPRS without and with APC on the paper's heterogeneous workload.

Qwen3-8B on a simulated RTX PRO 5000, budget 512, 32 seqs, context 256, 1,000 requests, C_max 6, L_min 16; at a target
below the decode-only round, as the paper's own figures need, at its 105 ms, and with the penalties of its script.
"""

from __future__ import annotations

from benchmarks.common import run_with_rounds

# Table 10; its "ms" are consistent only as seconds.
PAPER = {
    "LPRS": {"E2E s": 143.65, "TTFT s": 136.04, "prefills": 5.32, "chunk (all rounds)": 0.78, "cap": 0, "min": 0},
    "LPRS_APC": {
        "E2E s": 111.68,
        "TTFT s": 104.69,
        "prefills": 0.46,
        "chunk (all rounds)": 6.29,
        "cap": 4960,
        "min": 1541,
    },
}
# Target in ms, lambda_under, lambda_over: below the decode-only round, then the paper's, then as its script has them.
CASES = ((10.0, 1.0, 2.5), (100.0, 1.0, 2.5), (105.0, 1.0, 2.5), (100.0, 4.0, 1.5))
WORKLOAD = (
    "--request_generator_config_type=HETEROGENEOUS",
    "--heterogeneous_request_generator_config_num_requests=1000",
    "--simulated_executor_config_device=rtx_pro_5000_72gb",
    "--model_config_max_model_len=256",
)


def run(scheduler: str, target_ms: float, lambda_under: float, lambda_over: float) -> dict[str, float]:
    """One run's means over all rounds and over accepted prefills."""
    prefix = f"--{scheduler.lower()}_scheduler_config"
    summary, rows = run_with_rounds(
        [
            *WORKLOAD,
            f"--scheduler_config_type={scheduler}",
            f"{prefix}_chunk_size=512",
            f"{prefix}_max_num_seqs=32",
            f"{prefix}_target_ms={target_ms}",
            f"{prefix}_lambda_under={lambda_under}",
            f"{prefix}_lambda_over={lambda_over}",
        ]
    )
    rounds = [(int(row["num_prefills"]), int(row["batch_num_prefill_tokens"])) for row in rows]
    num_prefills = sum(n for n, _ in rounds)
    return {
        "E2E s": summary["request_e2e_time"]["mean"],
        "TTFT s": summary["prefill_e2e_time"]["mean"],
        "prefills": num_prefills / len(rounds),
        "chunk (all rounds)": sum(tokens / n if n else 0.0 for n, tokens in rounds) / len(rounds),
        "chunk (accepted)": sum(tokens for _, tokens in rounds) / num_prefills,
        "cap": summary["reasons"].get("refused_by_cap", 0),
        "min": summary["reasons"].get("refused_by_min_chunk", 0),
        "warm": summary["reasons"].get("warm_start", 0),
        "round ms": 1e3 * summary["batch_execution_time"]["mean"],
        "ITL p99 ms": 1e3 * summary["decode_token_execution_plus_preemption_time"]["p99"],
    }


def main() -> None:
    print("SIMULATED: Qwen3-8B on an RTX PRO 5000, heterogeneous workload, 1,000 requests, seed 42, shipped predictor")
    columns = [
        "E2E s", "TTFT s", "prefills", "chunk (all rounds)", "chunk (accepted)", "cap", "min", "warm", "round ms",
        "ITL p99 ms",
    ]  # fmt: skip
    print(f"{'target, penalties':<20}{'scheduler':<10}" + "".join(f"{name:>19}" for name in columns))
    rows = [
        (f"{target:g} ms, {under:g} and {over:g}", name, run(name, target, under, over))
        for target, under, over in CASES
        for name in PAPER
    ]
    rows += [("paper", name, values) for name, values in PAPER.items()]
    for target, name, values in rows:
        cells = [f"{values[column]:,.2f}" if column in values else "-" for column in columns]
        print(f"{target:<20}{name:<10}" + "".join(f"{cell:>19}" for cell in cells))


if __name__ == "__main__":
    main()
