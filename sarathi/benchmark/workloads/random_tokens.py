"""Token ids for requests that are known by their lengths only, so that a real model can read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sarathi.benchmark.workloads.spec import Workload


def with_random_tokens(workload: Workload, vocabulary: np.ndarray, seed: int) -> Workload:
    """The same workload with prompts of ids drawn uniformly from `vocabulary`, where a request has none.

    A request's ids depend on the seed, its place and its length alone.
    """
    requests = []
    for place, spec in enumerate(workload.requests):
        if spec.prompt_token_ids is None:
            drawn = np.random.default_rng((seed, place)).choice(vocabulary, spec.num_prompt_tokens)
            spec = spec._replace(prompt_token_ids=drawn.tolist())
        requests.append(spec)
    note = f"prompts are random tokens (seed {seed})"
    return replace(workload, requests=requests, notes=[*workload.notes, note])
