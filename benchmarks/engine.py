"""`make bench-engine`: the real engine on this CPU beside Hugging Face generate, vLLM for CPU and llama.cpp.

SmolLM2-135M with the same prompts, output lengths and threads for all, greedy. Engines take turns, since the host's
speed drifts; ratios within a turn and their medians are what counts. One that is not there or fails is told of in a
line.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.engine_jobs import EngineSettings, JobRequest
from benchmarks.engine_rivals import hugging_face, llama, ours, vllm
from benchmarks.engine_turns import Entry, in_turns, latency_table, rate_table
from sarathi.errors import FlagError

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128, 128
VOCAB_SIZE = 49152
CHUNK_SIZE, NUM_SEATS = 512, 64
HF_BATCH = 8
REPLAY_PROMPT, REPLAY_OUTPUT = 512, 64  # most tokens
REPLAY_TURNS = 2
ENGINES = {"ours": "ours", "vllm": "vLLM", "hf": "Hugging Face", "llama": "llama.cpp"}  # how their labels begin
INTERRUPTED, TERMINATED, BAD_FLAG = 130, 143, 2


def batch_entries(threads: int) -> dict[str, Entry]:
    """Ours and vLLM in every turn, the others, which take longer, in the first alone."""
    settings = EngineSettings("", threads, NUM_SEATS, PROMPT_TOKENS + OUTPUT_TOKENS, CHUNK_SIZE)
    small = replace(settings, max_num_seqs=HF_BATCH)
    return {
        "ours": Entry(ours(), settings),
        "vLLM": Entry(vllm(threads), settings),
        "vLLM compiled": Entry(vllm(threads), replace(settings, compiled=True)),
        f"Hugging Face, batch {NUM_SEATS}": Entry(hugging_face(), settings, num_turns=1),
        f"Hugging Face, batch {HF_BATCH}": Entry(hugging_face(), small, num_turns=1, num_requests=HF_BATCH),
        "llama.cpp f32": Entry(llama(as_shipped=False), settings, num_turns=1),
        "llama.cpp Q4": Entry(llama(as_shipped=True), settings, num_turns=1),
    }


def batch_job(entries: dict[str, Entry], num_requests: int, output_tokens: int, repeats: int) -> None:
    """Everything at once: output tokens per second, and tokens compared with ours."""
    prompts = np.random.default_rng(0).integers(0, VOCAB_SIZE, (num_requests, PROMPT_TOKENS)).tolist()
    print(
        f"\nBatch job: {num_requests} requests of {PROMPT_TOKENS} + {output_tokens} tokens at once; ours and vLLM: "
        f"rounds of at most {CHUNK_SIZE} tokens and {NUM_SEATS} requests; Hugging Face, batch {HF_BATCH}: the first "
        f"{HF_BATCH} requests alone",
        flush=True,
    )
    answers = in_turns(entries, [JobRequest(prompt, output_tokens) for prompt in prompts], repeats)
    print("\n" + "\n".join(rate_table(answers, "ours")), flush=True)


def replay_requests(num_requests: int, rate: float) -> list[JobRequest]:
    """ShareGPT's first turns, drawn with a seed, as a Poisson process of `rate` requests a second."""
    from sarathi.benchmark.tokenizers import choose_tokenizer
    from sarathi.benchmark.workloads.intervals import poisson_arrivals
    from sarathi.benchmark.workloads.sharegpt import sharegpt_workload

    workload = sharegpt_workload(
        poisson_arrivals(rate, 42),
        file=None,
        num_requests=2 * num_requests,
        turns="first",
        tokenizer=choose_tokenizer("model", "smollm2", None),
        max_prompt_tokens=REPLAY_PROMPT,
        max_output_tokens=REPLAY_OUTPUT,
        output_tokens=None,
        shuffle=True,
        seed=42,
        with_token_ids=True,
    )
    return [
        JobRequest(list(spec.prompt_token_ids or ()), max(1, spec.num_output_tokens), spec.arrival_time)
        for spec in workload.requests[:num_requests]
    ]


def replay_entries(threads: int, predictor: str | None, target_ms: float) -> dict[str, Entry]:
    common = EngineSettings("", threads, NUM_SEATS, REPLAY_PROMPT + REPLAY_OUTPUT, CHUNK_SIZE)
    entries: dict[str, Entry] = {}
    if predictor is not None:
        lprs = {"scheduler": "lprs", "target_ms": target_ms, "predictor_file": predictor}
        entries[f"ours, LPRS {target_ms:g} ms"] = Entry(ours(), replace(common, scheduler=lprs))
    return entries | {
        f"ours, chunk {CHUNK_SIZE}": Entry(ours(), common),
        "ours, chunk 128": Entry(ours(), replace(common, max_num_tokens=128)),
        "vLLM": Entry(vllm(threads), common),
        "llama.cpp f32": Entry(llama(as_shipped=False), common),
    }


def replay_job(entries: dict[str, Entry], jobs: list[JobRequest], rate: float) -> None:
    """The same requests at the same instants for each engine: latencies and throughput."""
    prompt = statistics.mean(len(job.prompt_token_ids) for job in jobs)
    output = statistics.mean(job.num_output_tokens for job in jobs)
    print(
        f"\nShareGPT replay: {len(jobs)} first turns of at most {REPLAY_PROMPT} + {REPLAY_OUTPUT} tokens (mean "
        f"{prompt:.0f} + {output:.0f}), Poisson arrivals, {rate:g} a second, over {jobs[-1].arrival_time:.0f} s; "
        f"{REPLAY_TURNS} turns, the second in reversed order, percentiles over both",
        flush=True,
    )
    answers = in_turns(entries, jobs, REPLAY_TURNS, streamed=True)
    print("\n" + "\n".join(latency_table(jobs, answers)), flush=True)


def check(args: argparse.Namespace) -> None:
    """Raises FlagError for what cannot be run."""
    cores = len(os.sched_getaffinity(0))
    if not 1 <= args.threads <= cores:
        raise FlagError("threads", f"{args.threads} is not allowed; 1 to {cores}, the cores that are here")
    for flag, least in {"repeats": 1, "requests": 1, "output_tokens": 1, "replayed": 0}.items():
        if (value := getattr(args, flag)) < least:
            raise FlagError(flag.replace("_", "-"), f"{value} is not allowed; at least {least}")
    if args.output_tokens > OUTPUT_TOKENS:
        raise FlagError("output-tokens", f"{args.output_tokens} is not allowed; at most {OUTPUT_TOKENS}")
    for flag in ("rate", "target_ms"):
        if not 0 < (value := getattr(args, flag)) < math.inf:
            raise FlagError(flag.replace("_", "-"), f"{value:g} is not allowed; above 0")
    if args.predictor is not None:
        from predictor.model import Predictor

        try:
            Predictor.load(args.predictor)
        except ValueError as error:
            raise FlagError("predictor", str(error)) from error


def chosen(entries: dict[str, Entry], names: Sequence[str]) -> dict[str, Entry]:
    """Those whose labels begin with one of ENGINES' labels."""
    return {label: e for label, e in entries.items() if label.startswith(tuple(ENGINES[name] for name in names))}


def _terminated(*_: object) -> None:
    sys.exit(TERMINATED)  # on the way out engines are ended


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for each (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of the batch job (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="of the batch job (default: %(default)s)")
    parser.add_argument(
        "--output-tokens", type=int, default=OUTPUT_TOKENS, help="of each in the batch job (default: %(default)s)"
    )
    parser.add_argument(
        "--replayed", type=int, default=60, help="requests of the replay; 0: none (default: %(default)s)"
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES], help="default: all")
    parser.add_argument("--rate", type=float, default=3.0, help="of the replay, requests/s (default: %(default)s)")
    parser.add_argument("--predictor", help="of round times on this machine, .npz; without one LPRS is left out")
    parser.add_argument("--target-ms", type=float, default=100.0, help="of LPRS (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        check(args)
    except FlagError as error:
        print(error, file=sys.stderr)
        return BAD_FLAG
    signal.signal(signal.SIGTERM, _terminated)
    started = time.monotonic()
    print(f"SmolLM2-135M, greedy, {args.threads} threads for each engine, each in a process of its own", flush=True)
    try:
        batch_job(chosen(batch_entries(args.threads), args.engines), args.requests, args.output_tokens, args.repeats)
        if args.replayed:
            entries = chosen(replay_entries(args.threads, args.predictor, args.target_ms), args.engines)
            replay_job(entries, replay_requests(args.replayed, args.rate), args.rate)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    print(f"\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
