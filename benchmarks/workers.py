"""`make workers`: one process beside workers on Ray, with rounds one ahead and without, on this CPU.

SmolLM2-135M in float32, greedy, everything at once. On one machine's cores workers cannot be faster than one process;
what they cost is what this tells.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from sarathi import LLM, SamplingParams

VOCAB_SIZE = 49152
WAYS: dict[str, dict[str, Any]] = {
    "one process": {},
    "one process, one ahead": {"overlap": True},
    "Ray, one worker": {"executor": "RAY"},
    "Ray, one worker, one ahead": {"executor": "RAY", "overlap": True},
    "Ray, TP 3": {"executor": "RAY", "tensor_parallel_size": 3},
    "Ray, TP 3, one ahead": {"executor": "RAY", "tensor_parallel_size": 3, "overlap": True},
    "Ray, PP 2": {"executor": "RAY", "pipeline_parallel_size": 2},
    "Ray, PP 3": {"executor": "RAY", "pipeline_parallel_size": 3},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--requests", type=int, default=16, help="at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each prompt and output (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: %(default)s)")
    args = parser.parse_args(argv)
    prompts = np.random.default_rng(0).integers(0, VOCAB_SIZE, (args.requests, args.tokens)).tolist()
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    settings = {"dtype": "float32", "max_num_seqs": args.requests, "chunk_size": 256, "num_gpu_blocks": 1000}
    print(f"SmolLM2-135M float32 on this CPU, {args.requests} requests of {args.tokens} + {args.tokens} tokens at once")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens: dict[str, list[list[int]]] = {}
    llms = {way: LLM("smollm2", **settings, **own) for way, own in WAYS.items()}
    for llm in llms.values():
        llm.generate(prompts[:2], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    for _ in range(args.repeats):
        for way, llm in llms.items():
            started = time.perf_counter()
            outputs = llm.generate(prompts, params)
            seconds[way].append(time.perf_counter() - started)
            tokens[way] = [output.token_ids for output in outputs]
    first = next(iter(WAYS))
    print(f"{'':<28}{'output tokens/s':>16}{'of one process':>16}  same tokens")
    for way, times in seconds.items():
        rate = args.requests * args.tokens / statistics.median(times)
        ratio = statistics.median(mine / its for mine, its in zip(seconds[first], times, strict=True))
        same = sum(a == b for a, b in zip(tokens[way], tokens[first], strict=True))
        print(f"{way:<28}{rate:>16.1f}{100 * ratio:>15.0f} %  {same} of {args.requests}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
