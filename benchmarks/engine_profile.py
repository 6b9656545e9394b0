"""`make performance`: what a round of the real engine costs on this CPU, how that grows, and what its parts are.

SmolLM2-135M in float32. The model's part is measured round by round over KV pages that hold numbers (pages that were
never written are one page of zeros, which the cache keeps); the engine's part with the model left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.rounds import make_round

GROUPS = {
    "linear": ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "lm_head_linear"),
    "attention": ("attn",),
    "norm, rope": ("input_layernorm", "post_attention_layernorm", "norm", "attn_rope"),
    "sampler": ("sampler",),
    "other": ("other",),
}
ROUND_SECONDS, ROUND_SEQS = 0.060, 64  # what the engine's own part is held against
WARM_UP_ROUNDS = 5
Chunk = tuple[int, int]  # new tokens, and the context with them


def round_times(worker: Any, chunks: Sequence[Chunk], repeats: int) -> dict[str, float]:
    """Median seconds of a round by group of operators, and in `total`."""
    batch = make_round(chunks, worker.block_size, vocab_size=40_000)
    rows = []
    for repeat in range(repeats + 1):
        given = worker.run(batch)
        if repeat:
            times = given.operator_times
            rows.append(
                {group: sum(times[name] for name in names) for group, names in GROUPS.items()}
                | {"total": given.execution_time}
            )
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def model_tables(threads: int, repeats: int) -> None:
    from sarathi.worker.worker import Worker

    tables: dict[str, dict[str, list[Chunk]]] = {
        "decodes, each with a context of 256": {str(n): [(1, 256)] * n for n in (1, 2, 4, 8, 16, 32, 64, 128)},
        "context of 16 decodes": {str(n): [(1, n)] * 16 for n in (128, 256, 512, 1024, 2048, 4096)},
        "one prompt of so many tokens": {str(n): [(n, n)] for n in (16, 32, 64, 128, 256, 512, 1024)},
        "a chunk of 256 that ends a context": {str(n): [(256, n)] for n in (256, 512, 1024, 2048, 4096)},
        "a chunk beside 32 decodes of 256": {str(n): [(1, 256)] * 32 + [(n, n)] for n in (32, 96, 224, 480)},
    }
    worker = Worker("smollm2", dtype="float32", num_threads=threads)
    blocks = max(
        sum(-(-context // worker.block_size) for _, context in chunks)
        for table in tables.values()
        for chunks in table.values()
    )
    worker.allocate_kv_cache(blocks, max_num_seqs=128, max_num_tokens=1024, max_len=4096)
    for pages in worker._kv_caches:
        pages.normal_()
    worker.warm_up(1024)
    worker.time_operators()
    print(f"{worker.description}; milliseconds, median of {repeats}; share of the round in brackets")
    for title, table in tables.items():
        print(f"\n{title:<36}{'total':>9}" + "".join(f"{group:>17}" for group in GROUPS) + f"{'tokens/s':>11}")
        for label, chunks in table.items():
            times = round_times(worker, chunks, repeats)
            parts = "".join(f"{1e3 * times[g]:>9.2f} ({100 * times[g] / times['total']:4.1f}%)" for g in GROUPS)
            rate = sum(length for length, _ in chunks) / times["total"]
            print(f"{label:>36}{1e3 * times['total']:>9.1f}{parts}{rate:>11.0f}", flush=True)


def engine_times(llm: Any, num_seqs: int, num_waiting: int, num_rounds: int) -> list[float]:
    """CPU seconds of each round of `num_seqs` decodes as LLM.generate runs it, without the model, others waiting."""
    from sarathi import SamplingParams

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_rounds + WARM_UP_ROUNDS + 2)
    engine = llm.llm_engine
    ids = [engine.add_request(None, params, [1, 2, 3]) for _ in range(num_seqs + num_waiting)]
    times = []
    for _ in range(num_rounds + WARM_UP_ROUNDS):
        started = time.thread_time()
        engine.run_round()
        times.append(time.thread_time() - started)
    for seq_id in ids:
        engine.abort_request(seq_id)
    while engine.has_unfinished_requests():
        engine.step()
    return times[WARM_UP_ROUNDS:]


def engine_tables(num_rounds: int) -> None:
    """Scheduling, the message, reading it, the update and outputs: all that is not the worker's model and sampler."""
    from sarathi import LLM
    from sarathi.worker.batch import WorkerOutput

    print("\nThe engine's own part of a round (schedule, message, batch, update, outputs), the model left out")
    print(f"{'decodes':>10}{'waiting':>10}{'mean ms':>10}{'P99 ms':>10}{f'of {1e3 * ROUND_SECONDS:g} ms':>12}")
    for num_seqs, num_waiting in ((1, 0), (16, 0), (64, 0), (128, 0), (64, 1_000), (64, 10_000), (64, 100_000)):
        llm = LLM(
            "smollm2", dtype="float32", max_num_seqs=num_seqs, chunk_size=1024, num_gpu_blocks=4000, num_threads=1
        )
        worker = llm.llm_engine.system.executor.worker  # pyright: ignore[reportAttributeAccessIssue]
        memory = worker._memory.stats()
        worker.run = lambda batch, memory=memory: WorkerOutput([7] * len(batch.output_rows), None, 0.0, memory)
        times = engine_times(llm, num_seqs, num_waiting, num_rounds)
        mean, p99 = statistics.mean(times), float(np.percentile(times, 99))
        print(f"{num_seqs:>10}{num_waiting:>10,}{1e3 * mean:>10.3f}{1e3 * p99:>10.3f}{mean / ROUND_SECONDS:>12.2%}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_profile", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the model (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each kind (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of the engine's part (default: %(default)s)")
    args = parser.parse_args(argv)
    engine_tables(args.rounds)
    model_tables(args.threads, args.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
