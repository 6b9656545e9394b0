"""`make bench-engine`: the real engine on this CPU beside Hugging Face generate, vLLM for CPU and llama.cpp.

SmolLM2-135M with the same prompts, output lengths and threads for all, greedy. Engines take turns, since the host's
speed drifts; ratios and medians are what counts. One that is not there or fails is told of in a line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest
from benchmarks.engine_rivals import EngineFailedError, Rival, RunningEngine, hugging_face, llama, ours, vllm

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128, 128
VOCAB_SIZE = 49152
CHUNK_SIZE, NUM_SEATS = 512, 64
HF, SLOW_TURNS = "Hugging Face, batch 8", 1
HF_BATCH = 8
REPLAY_PROMPT, REPLAY_OUTPUT = 512, 64  # most tokens
Engines = dict[str, RunningEngine]


def start(rivals: Mapping[str, Rival], settings: EngineSettings, **own: EngineSettings) -> Engines:
    """Those that can be started, by label."""
    engines: Engines = {}
    for label, rival in rivals.items():
        try:
            engines[label] = rival.start(own.get(label, settings))
        except EngineFailedError as error:
            print(f"  {label}: left out: {error}", flush=True)
        else:
            print(f"  {label}: {engines[label].name}", flush=True)
    return engines


def stop(engines: Engines) -> None:
    for engine in engines.values():
        engine.stop()


def output_rate(answers: Sequence[Answer]) -> float:
    """Output tokens per second, from the job's start to the last token."""
    return sum(len(a.token_times) for a in answers) / max(a.token_times[-1] for a in answers)


def batch_job(threads: int, repeats: int, num_requests: int) -> None:
    """Everything at once: output tokens per second, and tokens compared with ours."""
    prompts = np.random.default_rng(0).integers(0, VOCAB_SIZE, (num_requests, PROMPT_TOKENS)).tolist()
    jobs = [JobRequest(prompt, OUTPUT_TOKENS) for prompt in prompts]
    print(
        f"\nBatch job: {num_requests} requests of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens at once, float32, {threads} "
        f"threads, rounds of at most {CHUNK_SIZE} tokens and {NUM_SEATS} requests",
        flush=True,
    )
    settings = EngineSettings("", threads, NUM_SEATS, PROMPT_TOKENS + OUTPUT_TOKENS, CHUNK_SIZE)
    hf_settings = EngineSettings("", threads, HF_BATCH, PROMPT_TOKENS + OUTPUT_TOKENS, CHUNK_SIZE)
    engines = start({"ours": ours(), "vLLM": vllm(threads)}, settings)
    engines |= start({HF: hugging_face()}, hf_settings)
    slow = start({"llama.cpp f32": llama(as_shipped=False), "llama.cpp Q4": llama(as_shipped=True)}, settings)
    for engine in (engines | slow).values():
        engine.run([JobRequest(prompt[:8], 4) for prompt in prompts[:8]])  # warm up
    rates: dict[str, list[float]] = {label: [] for label in engines | slow}
    expected: list[Answer] = []
    for turn in range(repeats):
        for label, engine in (engines | (slow if turn < SLOW_TURNS else {})).items():
            answers = engine.run(jobs[:HF_BATCH] if label == HF else jobs)
            if label == "ours":
                expected = answers
            rates[label].append(output_rate(answers))
            same = sum(a.token_ids == b.token_ids for a, b in zip(answers, expected, strict=False))
            print(
                f"turn {turn + 1}: {label:<24} {rates[label][-1]:7.1f} output tokens/s; ours / it "
                f"{rates['ours'][-1] / rates[label][-1]:5.2f}; same tokens as ours in {same} of {len(answers)}",
                flush=True,
            )
    stop(engines | slow)
    for label, values in rates.items():
        ratio = statistics.median(mine / its for mine, its in zip(rates["ours"], values, strict=False))
        print(f"median: {label:<24} {statistics.median(values):7.1f} output tokens/s; ours / it {ratio:5.2f}")


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


def replay_job(threads: int, num_requests: int, rate: float, predictor: str | None, target_ms: float) -> None:
    """The same requests at the same instants for each engine: latencies and throughput."""
    jobs = replay_requests(num_requests, rate)
    prompt = statistics.mean(len(job.prompt_token_ids) for job in jobs)
    output = statistics.mean(job.num_output_tokens for job in jobs)
    print(
        f"\nShareGPT replay: {num_requests} first turns of at most {REPLAY_PROMPT} + {REPLAY_OUTPUT} tokens (mean "
        f"{prompt:.0f} + {output:.0f}), Poisson arrivals, {rate:g} a second, over {jobs[-1].arrival_time:.0f} s",
        flush=True,
    )
    common = EngineSettings("", threads, NUM_SEATS, REPLAY_PROMPT + REPLAY_OUTPUT, CHUNK_SIZE)
    lprs = {"scheduler": "lprs", "target_ms": target_ms, "predictor_file": predictor or ""}
    rivals = {"ours, chunk 512": ours(), "ours, chunk 128": ours(), "vLLM": vllm(threads)}
    rivals |= {"llama.cpp f32": llama(as_shipped=False)}
    own = {"ours, chunk 128": EngineSettings("", threads, NUM_SEATS, REPLAY_PROMPT + REPLAY_OUTPUT, 128)}
    if predictor is not None:
        label = f"ours, LPRS {target_ms:g} ms"
        rivals = {label: ours()} | rivals
        own[label] = EngineSettings("", threads, NUM_SEATS, common.max_model_len, CHUNK_SIZE, lprs)
    engines = start(rivals, common, **own)
    columns = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "ITL P50", "ITL P99")
    print(f"{'seconds':<24}" + "".join(f"{name:>10}" for name in columns) + f"{'tokens/s':>10}")
    for label, engine in engines.items():
        engine.run([JobRequest(job.prompt_token_ids[:8], 4) for job in jobs[:8]])
        answers = engine.run(jobs, streamed=True)
        figures = "".join(f"{figure:>10.3f}" for figure in latencies(jobs, answers))
        print(f"{label:<24}{figures}{output_rate(answers):>10.1f}", flush=True)
        engine.stop()


def latencies(jobs: Sequence[JobRequest], answers: Sequence[Answer]) -> list[float]:
    """P50 and P99, in seconds, of time to first token, time per output token of a request, and inter-token latency."""
    ttft = [answer.token_times[0] - job.arrival_time for job, answer in zip(jobs, answers, strict=True)]
    spans = [answer.token_times for answer in answers if len(answer.token_times) > 1]
    tpot = [(times[-1] - times[0]) / (len(times) - 1) for times in spans]
    itl = [gap for times in spans for gap in np.diff(times)]
    return [float(np.percentile(values, q)) for values in (ttft, tpot, itl) for q in (50, 99)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for each (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of the batch job (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="of the batch job (default: %(default)s)")
    parser.add_argument("--replayed", type=int, default=180, help="requests of the replay (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=3.0, help="of the replay, requests/s (default: %(default)s)")
    parser.add_argument("--predictor", help="of round times on this machine, .npz; without one LPRS is left out")
    parser.add_argument("--target-ms", type=float, default=100.0, help="of LPRS (default: %(default)s)")
    args = parser.parse_args(argv)
    batch_job(args.threads, args.repeats, args.requests)
    replay_job(args.threads, args.replayed, args.rate, args.predictor, args.target_ms)
    return 0


if __name__ == "__main__":
    sys.exit(main())
