"""From logits to tokens, for all rows of a round at once. Keeps nothing between rounds.

A token depends on its row's logits, seed and position alone, never on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sarathi.request import SamplingParams, TokenLogprobs
from sarathi.worker.batch import SamplingInput

EXCLUDED = float("-inf")
BLOCK = 256  # token ids that are drawn as one, before one of them is: about the root of a vocabulary's size
_KEY_BITS = (1 << 128) - 1  # of Philox: any seed, negative ones too, has a key of its own


class Sampler:
    """Draws one token a row.

    In this order: repetition penalty, frequency and presence penalties, forbidden tokens, temperature, min-p, top-k,
    top-p, and the draw. Tokens that tie with the last of a top-k or top-p set are kept.

    The draw is Gumbel's trick twice, over blocks of token ids and then inside the winner: the largest of log weight +
    noise has the distribution of the weights (Maddison et al. 2014). The noise belongs to seed, position and token id,
    so a difference in the last digit of the logits, as another batch gives it, hardly ever changes the token.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(
        self, logits: Tensor, rows: Sequence[SamplingInput] | None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """Token ids, and log probabilities where a row asks for them.

        Args:
            logits: (R, vocab_size) float32; may be changed.
            rows: how to sample each; None: all greedy.

        Raises RuntimeError naming a row whose logits are not numbers, or that has no token left.
        """
        if rows is None:
            best, tokens = logits.max(-1)
            _check(best)
            return tokens.tolist(), None
        params = [row.params for row in rows]
        asking = [i for i, p in enumerate(params) if p.logprobs is not None]
        drawn = [i for i, p in enumerate(params) if not p.is_greedy]
        # Made on the host while a GPU still computes the logits, so before anything that waits for them.
        noise = _noise([rows[i] for i in drawn], logits) if drawn else None
        raw = _take(logits, asking).log_softmax(-1) if asking else None  # before anything is changed
        self._penalize(logits, rows)
        best, tokens = logits.max(-1)
        _check(best)
        if noise is not None:
            tokens[drawn] = _draw(_take(logits, drawn), best[drawn], [rows[i] for i in drawn], noise)
        token_ids = tokens.tolist()
        if raw is None:
            return token_ids, None
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        for i, entry in zip(asking, _logprobs(raw, tokens[asking], [params[i] for i in asking]), strict=True):
            logprobs[i] = entry
        return token_ids, logprobs

    def _penalize(self, logits: Tensor, rows: Sequence[SamplingInput]) -> None:
        """Change the logits of the tokens that a penalty or a ban touches, in place.

        A token that occurs more than once has the same value written again; only frequency adds up.
        """
        flat = logits.view(-1)
        repetition = [
            (i, token_ids, row.params.repetition_penalty)
            for i, row in enumerate(rows)
            if row.params.repetition_penalty != 1
            for token_ids in (row.prompt_token_ids, row.output_token_ids)
        ]
        if repetition:
            places, penalty = self._places(repetition, logits)
            values = flat[places]
            flat[places] = torch.where(values > 0, values / penalty, values * penalty)
        presence = [(i, r.output_token_ids, r.params.presence_penalty) for i, r in enumerate(rows)]
        if presence := [entry for entry in presence if entry[2]]:
            places, penalty = self._places(presence, logits)
            flat[places] = flat[places] - penalty
        frequency = [(i, r.output_token_ids, r.params.frequency_penalty) for i, r in enumerate(rows)]
        if frequency := [entry for entry in frequency if entry[2]]:
            places, penalty = self._places(frequency, logits)
            flat.index_add_(0, places, penalty, alpha=-1)
        for i, row in enumerate(rows):
            if forbidden := [token for token in row.forbidden_token_ids if token < self._vocab_size]:
                logits[i, forbidden] = EXCLUDED

    def _places(self, entries: Sequence[tuple[int, Sequence[int], float]], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token of entries (row, token ids, value): its place in the flat logits, and its entry's value."""
        rows, token_ids, values = zip(*entries, strict=True)
        lengths = [len(ids) for ids in token_ids]
        places = np.concatenate([np.asarray(ids, np.int64) for ids in token_ids])
        places += np.repeat(np.array(rows, np.int64) * self._vocab_size, lengths)
        each = np.repeat(np.array(values, np.float32), lengths)
        return torch.from_numpy(places).to(logits.device), torch.from_numpy(each).to(logits.device)


def _draw(logits: Tensor, best: Tensor, rows: Sequence[SamplingInput], noise: Tensor) -> Tensor:
    """One token for each row of `logits`, which is changed and whose largest values are `best`."""
    params, vocab_size = [row.params for row in rows], logits.shape[-1]
    if any(p.temperature != 1 for p in params):
        temperature = _each([p.temperature for p in params], logits)
        logits /= temperature[:, None]
        best = best / temperature
    bound = torch.full_like(best, EXCLUDED)
    if any(p.min_p for p in params):
        bound = best + _each([p.min_p for p in params], logits).log()  # p_i < min_p * p_max, as logits
    limited = [i for i, p in enumerate(params) if 0 < p.top_k < vocab_size]
    if limited:
        top_ks = [params[i].top_k for i in limited]
        likeliest = _take(logits, limited).topk(max(top_ks), -1).values
        last = torch.tensor(top_ks, device=logits.device)[:, None] - 1
        bound[limited] = torch.maximum(bound[limited], likeliest.gather(-1, last)[:, 0])
    if limited or any(p.min_p for p in params):
        logits.masked_fill_(logits < bound[:, None], EXCLUDED)
    probabilities = logits.softmax(-1)
    tokens = _pick(probabilities, noise)
    _draw_again_outside_top_p(logits, probabilities, rows, tokens)
    return tokens


def _draw_again_outside_top_p(
    logits: Tensor, probabilities: Tensor, rows: Sequence[SamplingInput], tokens: Tensor
) -> None:
    """Replace those of `tokens` that are not in their row's top-p set, which is never sorted out.

    A token is in the set if those likelier than it hold less than top_p. One that is not rules out all that are no
    likelier; drawing among the rest until one is in the set gives the set's distribution.
    """
    left = [i for i, row in enumerate(rows) if row.params.top_p < 1]
    if not left:
        return
    logits, probabilities = _take(logits, left), _take(probabilities, left)
    top_p = _each([rows[i].params.top_p for i in left], logits)
    attempt = 0
    while left:
        likelier = probabilities.where(logits > logits.gather(-1, tokens[left][:, None]), 0)
        held = likelier.sum(-1)
        outside = (held >= top_p) & (held > 0)  # the likeliest token is always inside, however small top_p is
        left = [i for i, is_outside in zip(left, outside.tolist(), strict=True) if is_outside]
        if left:
            attempt += 1
            logits, probabilities, top_p = logits[outside], likelier[outside], top_p[outside]
            tokens[left] = _pick(probabilities, _noise([rows[i] for i in left], probabilities, attempt))


def _pick(weights: Tensor, noise: Tensor) -> Tensor:
    """One token for each row of `weights`, (R, vocab_size), in proportion to them."""
    vocab_size = weights.shape[-1]
    num_whole = vocab_size // BLOCK
    blocks = weights[:, : num_whole * BLOCK].unflatten(-1, (num_whole, BLOCK)).sum(-1)
    if vocab_size % BLOCK:
        blocks = torch.cat((blocks, weights[:, num_whole * BLOCK :].sum(-1, keepdim=True)), -1)
    block = (blocks.double().log() + noise[:, :-BLOCK]).argmax(-1, keepdim=True)
    ids = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, ids.clamp(max=vocab_size - 1)).double().log() + noise[:, -BLOCK:]
    best = inside.masked_fill_(ids >= vocab_size, EXCLUDED).argmax(-1, keepdim=True)
    return ids.gather(-1, best)[:, 0]


def _noise(rows: Sequence[SamplingInput], weights: Tensor, attempt: int = 0) -> Tensor:
    """Standard Gumbel noise, float64: -log(-log u), u uniform in (0, 1) with 52 bits; a row for each of `rows`.

    A column for each block of the token ids of `weights`, then one for each token id in a block. The same on every
    device. Philox counts in 256 bits: position and attempt stand above the low 64, which count the numbers of a draw.
    """
    width = -(-weights.shape[-1] // BLOCK) + BLOCK
    bits = np.empty((len(rows), width), np.uint64)
    for out, row in zip(bits, rows, strict=True):
        counter = (row.position << 128) | (attempt << 64)
        out[:] = np.random.Philox(key=row.seed & _KEY_BITS, counter=counter).random_raw(width)
    uniform = ((bits >> np.uint64(12)) + 0.5) * 2.0**-52
    return torch.from_numpy(-np.log(-np.log(uniform))).to(weights.device)


def _logprobs(raw: Tensor, tokens: Tensor, params: Sequence[SamplingParams]) -> list[TokenLogprobs]:
    """Of `tokens` (R,), from the model's own log probabilities `raw` (R, vocab_size)."""
    own = raw.gather(-1, tokens[:, None])
    ranks = (raw > own).sum(-1, dtype=torch.int32) + 1
    numbers = [p.logprobs or 0 for p in params]
    values, ids = raw.topk(min(max(numbers), raw.shape[-1]), -1)
    columns = (own[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), numbers)
    return [
        TokenLogprobs(logprob, rank, tuple(zip(row_ids[:number], row_values[:number], strict=True)))
        for logprob, rank, row_ids, row_values, number in zip(*columns, strict=True)
    ]


def _take(values: Tensor, rows: list[int]) -> Tensor:
    """The rows of `values` in ascending `rows`: itself, not a copy, where they are all."""
    return values if len(rows) == len(values) else values[rows]


def _each(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)


def _check(best: Tensor) -> None:
    """`best` is each row's largest logit."""
    if not torch.isfinite(best).all():
        row = int((~torch.isfinite(best)).nonzero()[0, 0])
        what = "no token is left to sample" if best[row] == EXCLUDED else "the logits are not finite numbers"
        raise RuntimeError(f"row {row} of the round: {what} (largest logit {best[row].item()})")
