"""`make bench-engine`: the real engine on this CPU beside Hugging Face generate, and where a round's time goes.

SmolLM2-135M in float32, 64 requests of 128 prompt and 128 output tokens, all at once, greedy, the same threads for
both. The two take turns, since the host's speed drifts; ratios of medians are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sarathi import LLM, RequestOutput, SamplingParams
from sarathi.call_timer import CallTimer
from sarathi.model import export

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128, 128
HF_BATCH = 8
Prompts = list[list[int]]


def _prompts(num_requests: int, vocab_size: int) -> Prompts:
    return np.random.default_rng(0).integers(0, vocab_size, (num_requests, PROMPT_TOKENS)).tolist()


def _ours(llm: LLM, prompts: Prompts) -> list[RequestOutput]:
    return llm.generate(prompts, SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True))


def _hugging_face(model: Any, prompts: Prompts) -> Prompts:
    given = torch.tensor(prompts)
    with torch.inference_mode():
        tokens = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=OUTPUT_TOKENS,
        )
    return tokens[:, given.shape[1] :].tolist()


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def gemm_gflops(threads_rows: int = 256) -> float:
    """Float32 GFLOP/s of this CPU as oneDNN reaches them with packed weights: the limit of what follows."""
    rows = torch.randn(threads_rows, 576)
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(3072, 576))
    times = []
    for _ in range(50):
        seconds, _ = _seconds(lambda: torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], ""))
        times.append(seconds)
    return 2 * threads_rows * 576 * 3072 / statistics.median(times) / 1e9


def _profile(llm: LLM, prompts: Prompts) -> None:
    """Print the share of linear layers, attention, sampling, other operators and our own Python."""
    from sarathi.model import layers

    worker = llm.llm_engine.system.executor.worker  # pyright: ignore[reportAttributeAccessIssue]
    timer = CallTimer()
    timer.time(layers.Linear, "forward", "linear layers")
    timer.time(layers.GatedLinear, "forward", "linear layers")
    timer.time(worker._attention, "forward", "attention, KV write")
    timer.time(worker._sampler, "sample", "sampling")
    timer.time(worker, "execute", "norms, rotary embedding, activations, batch")
    total, _ = _seconds(lambda: _ours(llm, prompts))
    timer.stop()
    parts = timer.take()
    parts["scheduler, batch building, outputs"] = total - sum(parts.values())
    print(f"\nWhere the time goes, all {len(prompts)} requests ({total:.1f} s, timers on):")
    for part, seconds in parts.items():
        print(f"  {part:<46} {100 * seconds / total:5.1f} %")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for both (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="requests for our engine")
    args = parser.parse_args(argv)
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    llm = LLM("smollm2", num_threads=args.threads, dtype="float32", max_num_seqs=args.requests, chunk_size=512)
    prompts = _prompts(args.requests, llm.llm_engine.system.model.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        export.main(["smollm2", str(Path(folder, "smollm2"))])
        hf_model: Any = AutoModelForCausalLM.from_pretrained(Path(folder, "smollm2"), dtype=torch.float32)
    hf_model.generation_config.eos_token_id = None  # end of text is an ordinary token, as with ignore_eos
    limit = gemm_gflops()
    print(
        f"SmolLM2-135M float32, {args.requests} requests of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens at once, greedy, "
        f"{args.threads} threads, {limit:.0f} GFLOP/s in oneDNN's matrix product"
    )
    _ours(llm, [prompt[:8] for prompt in prompts[:8]])  # warm up
    ours, theirs, ratios = [], [], []
    for turn in range(args.repeats):
        seconds, expected = _seconds(lambda: _hugging_face(hf_model, prompts[:HF_BATCH]))
        theirs.append(HF_BATCH * OUTPUT_TOKENS / seconds)
        seconds, outputs = _seconds(lambda: _ours(llm, prompts))
        ours.append(args.requests * OUTPUT_TOKENS / seconds)
        ratios.append(ours[-1] / theirs[-1])
        same = sum(output.token_ids == tokens for output, tokens in zip(outputs, expected, strict=False))
        print(
            f"turn {turn + 1}: Hugging Face generate, batch {HF_BATCH}: {theirs[-1]:6.1f} output tokens/s; ours: "
            f"{ours[-1]:6.1f}; ratio {ratios[-1]:.2f}; same tokens in {same} of {HF_BATCH}",
            flush=True,
        )
    print(
        f"median: Hugging Face {statistics.median(theirs):.1f}, ours {statistics.median(ours):.1f} output tokens/s, "
        f"ratio {statistics.median(ratios):.2f}"
    )
    _profile(llm, prompts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
