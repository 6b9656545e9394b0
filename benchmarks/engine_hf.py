"""Hugging Face generate as an engine of `make bench-engine`: static batches of one length, in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engine_jobs import Answer, Arrivals, EngineSettings, JobRequest, Run, serve


def load(settings: EngineSettings) -> tuple[str, Run]:
    import torch
    import transformers

    torch.set_num_threads(settings.num_threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # end of text is an ordinary token

    @torch.inference_mode()
    def run(requests: Sequence[JobRequest], streamed: bool) -> list[Answer]:
        """All arrive at once and are of one length."""
        arrivals = Arrivals(requests)
        answers: list[Answer] = []
        for first in range(0, len(requests), settings.max_num_seqs):
            batch = requests[first : first + settings.max_num_seqs]
            given = torch.tensor([request.prompt_token_ids for request in batch])
            num_new = batch[0].num_output_tokens
            tokens = model.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=num_new
            )
            now = arrivals.now()
            answers += [Answer(row, [now] * num_new) for row in tokens[:, given.shape[1] :].tolist()]
        return answers

    how = f"float32, in process, static batches of {settings.max_num_seqs}"
    return f"Hugging Face generate {transformers.__version__}, {how}", run


if __name__ == "__main__":
    serve(load)
