"""The sampler's distributions against the formulas, its seeds, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sarathi.request import SamplingParams
from sarathi.worker.batch import SamplingInput
from sarathi.worker.sampler import Sampler

VOCAB = 12
NUM_DRAWS = 8_000
LOGITS = np.array([2.0, 1.5, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -3.0, 0.2, 1.1])
PROMPT, OUTPUT = (0, 3, 3, 5), (1, 1, 4)


def row(seed: int = 0, position: int = 0, forbidden: tuple[int, ...] = (), **params: Any) -> SamplingInput:
    return SamplingInput(SamplingParams(**params), seed, position, PROMPT, OUTPUT, forbidden)


def probabilities(p: SamplingParams, forbidden: tuple[int, ...] = ()) -> np.ndarray:
    """By the formulas, one token at a time."""
    logits = LOGITS.copy()
    for token in range(VOCAB):
        if token in PROMPT or token in OUTPUT:
            logits[token] *= 1 / p.repetition_penalty if logits[token] > 0 else p.repetition_penalty
        count = OUTPUT.count(token)
        logits[token] -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
        if token in forbidden:
            logits[token] = -np.inf
    logits = logits / p.temperature
    allowed = np.exp(logits) >= p.min_p * np.exp(logits.max()) * (1 - 1e-6)
    logits[~allowed] = -np.inf
    if 0 < p.top_k < VOCAB:
        logits[logits < np.sort(logits)[-p.top_k]] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum()
    kept, held = np.zeros(VOCAB, bool), 0.0
    for token in np.argsort(-probs, kind="stable"):
        if held < p.top_p:
            kept[token] = True
        held += probs[token]
    kept |= probs >= probs[kept].min()  # those that tie with the last
    probs[~kept] = 0
    return probs / probs.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_p": 0.7},
        {"top_p": 0.95, "temperature": 2.0},
        {"top_k": 1},
        {"top_k": 4},
        {"top_k": 100},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.8},
        {"frequency_penalty": -1.0},
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.6, "top_k": 6, "top_p": 0.8, "temperature": 1.3, "presence_penalty": 0.4},
        {"forbidden": (0, 2)},
    ],
    ids=str,
)
def test_tokens_have_the_distribution_of_the_formula(params: dict[str, Any]) -> None:
    rows = [row(seed=seed, position=seed % 7, **params) for seed in range(NUM_DRAWS)]
    logits = torch.from_numpy(np.tile(LOGITS, (NUM_DRAWS, 1)).astype(np.float32))
    tokens, _ = Sampler(VOCAB).sample(logits, rows)
    expected = probabilities(rows[0].params, rows[0].forbidden_token_ids)
    counts = np.bincount(tokens, minlength=VOCAB)
    assert not counts[expected == 0].any()
    inside = expected > 0
    chi_square = (((counts - NUM_DRAWS * expected) ** 2)[inside] / (NUM_DRAWS * expected[inside])).sum()
    degrees = inside.sum() - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 4  # beyond four standard deviations
    positions = [row(seed=5, position=i, **params) for i in range(NUM_DRAWS)]
    logits = torch.from_numpy(np.tile(LOGITS, (NUM_DRAWS, 1)).astype(np.float32))
    tokens, _ = Sampler(VOCAB).sample(logits, positions)
    assert abs(np.bincount(tokens, minlength=VOCAB) / NUM_DRAWS - expected).max() < 0.03


def test_a_seed_gives_the_same_token_in_any_company() -> None:
    torch.manual_seed(0)
    vocab = 5000
    sampler, logits = Sampler(vocab), torch.randn(64, vocab)
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.1}, {"temperature": 0.0}]
    rows = [row(seed=-i if i % 2 else i << 70, position=i, **kinds[i % len(kinds)]) for i in range(64)]
    together, _ = sampler.sample(logits.clone(), rows)
    alone = [sampler.sample(logits[i : i + 1].clone(), [rows[i]])[0][0] for i in range(64)]
    assert together == alone
    noisy = logits + 1e-6 * torch.randn_like(logits)  # as another batch computes them
    assert sampler.sample(noisy, rows)[0] == together
    moved, _ = sampler.sample(logits.clone(), [r._replace(position=r.position + 1) for r in rows])
    assert moved != together


def test_greedy_and_its_limits() -> None:
    logits = torch.from_numpy(np.tile(LOGITS, (3, 1)).astype(np.float32))
    assert Sampler(VOCAB).sample(logits.clone(), None) == ([0, 0, 0], None)
    rows = [row(temperature=1e-6), row(top_p=1e-9), row(forbidden=(0,), temperature=0)]
    assert Sampler(VOCAB).sample(logits.clone(), rows)[0] == [0, 0, 1]
    all_but_nine = tuple(i for i in range(VOCAB) if i != 9)
    assert Sampler(VOCAB).sample(logits[:1].clone(), [row(forbidden=all_but_nine)])[0] == [9]


def test_a_nucleus_wider_than_the_prefilter() -> None:
    vocab = 20_000
    logits = torch.zeros(2, vocab)
    logits[:, : vocab // 2] += 0.01  # half of the tokens, each a little likelier, hold 50.25 %
    rows = [row(seed=seed, top_p=0.5, position=seed) for seed in range(2)]
    for _ in range(20):
        rows = [r._replace(seed=r.seed + 2) for r in rows]
        assert max(Sampler(vocab).sample(logits.clone(), rows)[0]) < vocab // 2


def test_logprobs_are_the_models_own_with_ranks() -> None:
    logits = torch.from_numpy(np.tile(LOGITS, (4, 1)).astype(np.float32))
    rows = [
        row(temperature=0, logprobs=0),
        row(temperature=0, forbidden=(0,), logprobs=3, presence_penalty=2.0),
        row(seed=4, temperature=2.0),
        row(seed=9, top_k=3, logprobs=100),
    ]
    tokens, logprobs = Sampler(VOCAB).sample(logits.clone(), rows)
    assert logprobs is not None and logprobs[2] is None
    own = LOGITS - np.log(np.exp(LOGITS).sum())
    order = np.argsort(-own, kind="stable")
    for i, number in ((0, 0), (1, 3), (3, VOCAB)):
        entry = logprobs[i]
        assert entry.logprob == pytest.approx(own[tokens[i]], abs=1e-5)
        assert entry.rank == 1 + (own > own[tokens[i]] + 1e-9).sum()
        assert [value for _, value in entry.top] == pytest.approx(own[order[:number]], abs=1e-5)
        assert all(value == pytest.approx(own[token], abs=1e-5) for token, value in entry.top)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_told_by_row(value: float) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, 4] = value
    for rows in (None, [row()] * 3):
        with pytest.raises(RuntimeError, match="row 1 of the round: the logits are not finite"):
            Sampler(VOCAB).sample(logits.clone(), rows)
    with pytest.raises(RuntimeError, match="row 0 of the round: no token is left"):
        Sampler(VOCAB).sample(torch.zeros(1, VOCAB), [row(forbidden=tuple(range(VOCAB)))])
