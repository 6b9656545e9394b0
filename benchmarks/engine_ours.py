"""Our engine as one of `make bench-engine`, in a process of its own like the others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest, Run, serve


def load(settings: EngineSettings) -> tuple[str, Run]:
    from sarathi import LLM, SamplingParams
    from sarathi.engine.engine import replay
    from sarathi.request import Request

    common: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": settings.num_threads,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": settings.max_model_len,
        "chunk_size": settings.max_num_tokens,
    }
    llm = LLM(settings.model, **common, **settings.scheduler)
    engine = llm.llm_engine.engine

    def run(requests: Sequence[JobRequest], streamed: bool) -> list[Answer]:
        started = engine.clock.now()
        ours = [
            Request(
                str(number),
                request.prompt_token_ids,
                SamplingParams(temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True),
                started + request.arrival_time,
            )
            for number, request in enumerate(requests)
        ]
        replay(engine, sorted(ours, key=lambda request: request.arrival_time))
        return [
            Answer(list(request.output_token_ids), [at - started for at in request.token_times]) for request in ours
        ]

    return f"sarathi-serve-fair {metadata.version('sarathi-serve-fair')}, float32, in process", run


if __name__ == "__main__":
    serve(load)
