"""Time of the CPU's attention backends: decodes and chunks over paged contexts, GB/s of keys and values, GFLOP/s.

Layers take turns, as in a model, so that pages come from memory and not from the processor's caches.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from benchmarks.rounds import make_round
from sarathi.attention.base import AttentionBackend
from sarathi.attention.paged_cpu import PagedCpuBackend
from sarathi.attention.sdpa import SdpaBackend
from sarathi.worker.batch import Batch

NUM_LAYERS, BLOCK_SIZE = 12, 16
Chunks = list[tuple[int, int]]  # (queries, context length) of each sequence
CASES: dict[str, Chunks] = {
    "64 decodes at 192": [(1, 192)] * 64,
    "12 decodes at 1,000": [(1, 1000)] * 12,
    "1 decode at 8,000": [(1, 8000)],
    "1 decode at 4,000, 30 at 100": [(1, 4000)] + [(1, 100)] * 30,
    **{f"chunk of {n} at {context:,}": [(n, context)] for n in (8, 16, 32, 64, 256) for context in (256, 2048)},
}


def measure(
    backends: dict[str, AttentionBackend], batch: Batch, pages: list[torch.Tensor], num_heads: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each call, the backends by turns."""
    num_kv_heads, head_dim = pages[0].shape[2], pages[0].shape[4]
    query, key, value = (torch.randn(batch.num_tokens, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads))
    times: dict[str, list[float]] = {name: [] for name in backends}
    for turn in range(repeats + 1):
        for name, backend in backends.items():
            backend.begin_round(batch)
            for layer in pages:
                started = time.perf_counter()
                backend.forward(query, key, value, layer, head_dim**-0.5, None)
                if turn:  # the first is for warming up
                    times[name].append(time.perf_counter() - started)
    return times


@torch.inference_mode()
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="turns over all layers (default: %(default)s)")
    parser.add_argument("--heads", type=int, nargs=3, default=(9, 3, 64), help="heads, KV heads, head_dim (SmolLM2)")
    args = parser.parse_args(argv)
    num_heads, num_kv_heads, head_dim = args.heads
    torch.set_num_threads(args.threads)
    backends: dict[str, AttentionBackend] = {"CPU_PAGED": PagedCpuBackend(), "SDPA": SdpaBackend()}
    num_blocks = max(sum(-(-context // BLOCK_SIZE) for _, context in chunks) for chunks in CASES.values())
    pages = [torch.randn(num_blocks, 2, num_kv_heads, BLOCK_SIZE, head_dim) for _ in range(NUM_LAYERS)]
    print(f"{num_heads} heads, {num_kv_heads} KV heads of {head_dim}, float32, {args.threads} threads; median and")
    print("fastest tenth of a layer's milliseconds, GB/s and GFLOP/s at the median")
    for case, chunks in CASES.items():
        kv_bytes = sum(context for _, context in chunks) * num_kv_heads * head_dim * 8
        flops = sum(4 * n * (context - (n - 1) / 2) for n, context in chunks) * num_heads * head_dim
        batch = make_round(chunks, BLOCK_SIZE, blocks=np.random.default_rng(0).permutation(num_blocks))
        for name, times in measure(backends, batch, pages, num_heads, args.repeats).items():
            median, fast = np.percentile(times, (50, 10))
            rates = f"{kv_bytes / median / 1e9:5.1f} GB/s {flops / median / 1e9:6.1f} GFLOP/s"
            print(f"{case:<30} {name:<10} {median * 1e3:8.3f} {fast * 1e3:8.3f} ms {rates}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
