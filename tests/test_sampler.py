"""The sampler's distributions against the formulas, its seeds, its log probabilities, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sarathi.request import MAX_LOGPROBS, SamplingParams
from sarathi.worker.batch import SamplingInput
from sarathi.worker.sampler import BLOCK, Sampler

NUM_DRAWS = 4_000
SMALL = np.array([2.0, 1.5, 1.5, 1.0, -0.5, 0.0, 0.5, -1.0, -2.0, -3.0, 0.2, 1.1])
PLACES = [0, 1, 2, 3, 4, 5, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 698, 699]
WIDE = np.full(700, -np.inf)  # the same tokens over two blocks and part of a third, nothing between them
WIDE[PLACES] = SMALL


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def row(seed: int = 0, position: int = 0, forbidden: tuple[int, ...] = (), **params: Any) -> SamplingInput:
    return SamplingInput(SamplingParams(**params), seed, position, (0, 3, 3, 5), (1, 1, 4), forbidden)


def rows_of(r: SamplingInput, num_rows: int) -> list[SamplingInput]:
    return [r._replace(seed=seed, position=seed % 7) for seed in range(num_rows)]


def batch(logits: np.ndarray, num_rows: int) -> Any:
    return torch.from_numpy(np.tile(logits, (num_rows, 1)).astype(np.float32))


def probabilities(logits: np.ndarray, r: SamplingInput) -> np.ndarray:
    """By the formulas, one token at a time."""
    p, logits, vocab_size = r.params, logits.copy(), len(logits)
    for token in range(vocab_size):
        if token in r.prompt_token_ids or token in r.output_token_ids:
            logits[token] *= 1 / p.repetition_penalty if logits[token] > 0 else p.repetition_penalty
        count = r.output_token_ids.count(token)
        logits[token] -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
        if token in r.forbidden_token_ids:
            logits[token] = -np.inf
    logits = logits / p.temperature
    logits[np.exp(logits) < p.min_p * np.exp(logits.max()) * (1 - 1e-6)] = -np.inf
    if 0 < p.top_k < vocab_size:
        logits[logits < np.sort(logits)[-p.top_k]] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum()
    held, smallest = 0.0, 1.0
    for token in np.argsort(-probs, kind="stable"):
        if held < p.top_p and probs[token] > 0:
            smallest = probs[token]
        held += probs[token]
    probs[probs < smallest] = 0  # those that tie with the last stay
    return probs / probs.sum()


def assert_drawn_from(tokens: list[int], expected: np.ndarray, num_bins: int) -> None:
    """Chi-square of tokens, in bins of equal `id % num_bins`; seeds are fixed, so it gives the same each time."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    bins = np.arange(len(expected)) % num_bins
    observed = np.bincount(bins, counts, num_bins)
    mean = len(tokens) * np.bincount(bins, expected, num_bins)
    inside = mean > 0
    chi_square = ((observed - mean)[inside] ** 2 / mean[inside]).sum()
    degrees = inside.sum() - 1
    assert chi_square <= degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_p": 0.1},
        {"top_p": 0.3},  # ends between two that tie
        {"top_p": 0.7},
        {"top_p": 0.95, "temperature": 2.0},
        {"top_k": 1},
        {"top_k": 2},  # the second and the third tie
        {"top_k": 4},
        {"top_k": 1000},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"min_p": 0.2, "temperature": 2.5},
        {"min_p": 0.1, "temperature": 0.5},
        {"presence_penalty": 1.5},
        {"presence_penalty": -0.7},
        {"frequency_penalty": 0.8},
        {"frequency_penalty": -1.0},
        {"repetition_penalty": 1.7},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
        {"top_k": 6, "top_p": 0.8, "temperature": 1.5},
        {"min_p": 0.1, "top_k": 7, "top_p": 0.9, "temperature": 1.5},
        {"repetition_penalty": 0.6, "top_k": 6, "top_p": 0.8, "temperature": 1.3, "presence_penalty": 0.4},
        {"forbidden": (0, 2)},
        {"forbidden": (0,), "top_p": 0.5},
    ],
    ids=str,
)
def test_tokens_have_the_distribution_of_the_formula(params: dict[str, Any]) -> None:
    rows = rows_of(row(**params), NUM_DRAWS)
    tokens, _ = Sampler(len(WIDE)).sample(batch(WIDE, NUM_DRAWS), rows)
    assert_drawn_from(tokens, probabilities(WIDE, rows[0]), len(WIDE))


@pytest.mark.parametrize("params", [{}, {"top_p": 0.7, "top_k": 9, "frequency_penalty": 0.8}], ids=str)
def test_a_vocabulary_smaller_than_a_block(params: dict[str, Any]) -> None:
    rows = rows_of(row(**params), NUM_DRAWS)
    tokens, _ = Sampler(len(SMALL)).sample(batch(SMALL, NUM_DRAWS), rows)
    assert_drawn_from(tokens, probabilities(SMALL, rows[0]), len(SMALL))


@pytest.mark.parametrize("params", [{}, {"top_p": 0.5}, {"top_p": 0.97}, {"top_k": 900, "top_p": 0.9}], ids=str)
def test_a_flat_distribution_over_many_tokens(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(0, 1.5, 2_900).astype(np.float32).astype(np.float64)
    rows = rows_of(row(**params), 2_000)
    tokens, _ = Sampler(len(logits)).sample(batch(logits, len(rows)), rows)
    assert_drawn_from(tokens, probabilities(logits, rows[0]), 40)


def test_positions_of_one_seed_are_drawn_independently() -> None:
    positions = [row(5)._replace(position=position) for position in range(NUM_DRAWS)]
    tokens, _ = Sampler(len(WIDE)).sample(batch(WIDE, NUM_DRAWS), positions)
    probs = probabilities(WIDE, positions[0])
    assert_drawn_from(tokens, probs, len(WIDE))
    pairs = np.array([PLACES.index(token) for token in tokens]).reshape(-1, 2) // 4  # thirds, to have enough of each
    thirds = probs[PLACES].reshape(3, 4).sum(-1)
    assert_drawn_from(list(pairs[:, 0] * 3 + pairs[:, 1]), np.outer(thirds, thirds).ravel(), 9)


KINDS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.8},
    {"top_k": 7},
    {"min_p": 0.1, "logprobs": 2},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.3, "top_k": 40, "logprobs": 0},
    {"repetition_penalty": 1.3, "temperature": 0.0, "logprobs": 5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5, "top_p": 0.9, "forbidden": (3, 4)},
]


def test_a_seed_gives_the_same_token_in_any_company() -> None:
    torch.manual_seed(0)
    vocab_size = 5000
    sampler, logits = Sampler(vocab_size), 2 * torch.randn(64, vocab_size)
    rows = [row((-1) ** i * (2**63 - 1 - i), i, **KINDS[i % len(KINDS)]) for i in range(64)]
    rows = [r._replace(prompt_token_ids=range(i, 9 * i), output_token_ids=[i, 9, i]) for i, r in enumerate(rows)]
    together, logprobs = sampler.sample(logits.clone(), rows)
    assert logprobs is not None
    for i in range(64):
        tokens, own = sampler.sample(logits[i : i + 1].clone(), [rows[i]])
        assert tokens == [together[i]]
        if own is None:
            assert logprobs[i] is None
        else:
            assert (own[0].rank, [t for t, _ in own[0].top]) == (logprobs[i].rank, [t for t, _ in logprobs[i].top])
    order = list(reversed(range(64)))
    assert sampler.sample(logits[order], [rows[i] for i in order])[0] == together[::-1]
    noisy = logits + 1e-6 * torch.randn_like(logits)  # as another batch computes them
    assert sampler.sample(noisy, rows)[0] == together


def test_other_seeds_and_positions_give_other_tokens() -> None:
    logits, seeds = torch.zeros(1, 5000), [0, 1, -1, 2**62, -(2**62), 2**63 - 1, 2**64, 2**100]
    drawn = [
        tuple(Sampler(5000).sample(logits.clone(), [row(seed, position)])[0][0] for position in range(4))
        for seed in seeds
    ]
    assert len({token for tokens in drawn for token in tokens}) > 28  # of 32; two at random agree once in 5,000


def test_greedy_and_its_limits() -> None:
    sampler = Sampler(12)
    assert sampler.sample(batch(SMALL, 3), None) == ([0, 0, 0], None)
    rows = [row(temperature=1e-6), row(top_p=1e-9), row(forbidden=(0,), temperature=0), row(temperature=2e-5)]
    assert sampler.sample(batch(SMALL, 4), rows)[0] == [0, 0, 1, 0]
    assert sampler.sample(batch(SMALL, 1), [row(forbidden=tuple(set(range(12)) - {9}))])[0] == [9]
    rows = [row(temperature=0, presence_penalty=2), row(temperature=0, repetition_penalty=2.0)]
    logits = np.where(np.arange(12) == 1, 2.5, SMALL)  # token 1 was generated twice, token 0 stands in the prompt
    assert sampler.sample(batch(logits, 2), rows)[0] == [0, 2]


def test_forbidden_tokens_that_the_model_lacks_touch_no_other_row() -> None:
    assert Sampler(12).sample(batch(SMALL, 2), [row(forbidden=(12, 99), temperature=0), row(temperature=0)])[0] == [
        0,
        0,
    ]


@pytest.mark.parametrize("top_k", [-1, 3])
def test_logprobs_are_the_models_own_with_ranks(top_k: int) -> None:
    vocab_size = 300
    logits = np.random.default_rng(2).normal(0, 2, vocab_size)
    rows = [
        row(temperature=0, logprobs=0),
        row(temperature=0, forbidden=(int(logits.argmax()),), logprobs=3, presence_penalty=2.0),
        row(seed=4, temperature=2.0),
        row(seed=9, temperature=3.0, top_k=top_k, logprobs=MAX_LOGPROBS, repetition_penalty=5.0),
    ]
    tokens, logprobs = Sampler(vocab_size).sample(batch(logits, 4), rows)
    assert logprobs is not None and logprobs[2] is None
    own = logits - np.log(np.exp(logits).sum())
    order = np.argsort(-own)
    for i, number in ((0, 0), (1, 3), (3, MAX_LOGPROBS)):
        entry = logprobs[i]
        assert entry.logprob == pytest.approx(own[tokens[i]], abs=1e-5)
        assert order[entry.rank - 1] == tokens[i]
        assert [token for token, _ in entry.top] == order[:number].tolist()
        assert [value for _, value in entry.top] == pytest.approx(own[order[:number]], abs=1e-5)
    assert [logprobs[0].rank, logprobs[1].rank] == [1, 2]


def test_logprobs_of_a_vocabulary_smaller_than_is_asked_for() -> None:
    _, logprobs = Sampler(12).sample(batch(SMALL, 1), [row(logprobs=MAX_LOGPROBS)])
    assert logprobs is not None and logprobs[0] is not None
    assert sorted(token for token, _ in logprobs[0].top) == list(range(12))
    assert sum(np.exp(value) for _, value in logprobs[0].top) == pytest.approx(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [None, [row()] * 3, [row(temperature=0, logprobs=1, top_p=0.5)] * 3])
def test_logits_that_are_no_numbers_are_told_by_row(value: float, rows: list[SamplingInput] | None) -> None:
    logits = torch.zeros(3, 12)
    logits[1, 4] = value
    with pytest.raises(RuntimeError, match="row 1 of the round: the logits are not finite"):
        Sampler(12).sample(logits, rows)


def test_a_row_without_a_token_left_is_told() -> None:
    rows = [row(), row(forbidden=tuple(range(12)))]
    with pytest.raises(RuntimeError, match="row 1 of the round: no token is left"):
        Sampler(12).sample(torch.zeros(2, 12), rows)
