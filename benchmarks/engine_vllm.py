"""vLLM for CPU as an engine of `make bench-engine`, run by the interpreter that has it installed.

Its engine core runs in this process, so all of its work is on the threads that it is bound to; tokens are not turned
into text. Same types and rounds as ours: float32, no prefix cache, chunked prefill; eager unless `compiled` is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engine_jobs import Answer, Arrivals, EngineSettings, JobRequest, Run, serve


def load(settings: EngineSettings) -> tuple[str, Run]:
    import vllm  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    arguments = vllm.EngineArgs(
        model=settings.model,
        dtype="float32",
        enforce_eager=not settings.compiled,
        enable_prefix_caching=False,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_tokens,
        max_model_len=settings.max_model_len,
        disable_log_stats=True,
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)

    def run(requests: Sequence[JobRequest], streamed: bool) -> list[Answer]:
        kind = RequestOutputKind.DELTA
        answers = [Answer([], []) for _ in requests]
        arrivals = Arrivals(requests)
        while arrivals or engine.has_unfinished_requests():
            for number, request in arrivals.due(idle=not engine.has_unfinished_requests()):
                prompt: Any = {"prompt_token_ids": request.prompt_token_ids}
                params = vllm.SamplingParams(
                    temperature=0,
                    max_tokens=request.num_output_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=kind,
                )
                engine.add_request(str(number), prompt, params)
            outputs = engine.step()
            now = arrivals.now()
            for output in outputs:
                token_ids = list(output.outputs[0].token_ids)
                answer = answers[int(output.request_id)]
                answer.token_ids.extend(token_ids)
                answer.token_times.extend([now] * len(token_ids))
        return answers

    mode = "torch.compile" if settings.compiled else "eager"
    return f"vLLM {vllm.__version__}, {mode}, float32, in process", run


if __name__ == "__main__":
    serve(load)
