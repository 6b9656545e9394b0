"""From logits to tokens, for all rows of a round at once. Keeps nothing between rounds.

A token depends on its row's logits, seed and position alone, never on what else is in the batch: the noise of each
draw comes from a generator keyed by seed and position, one number for each token id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sarathi.request import SamplingParams, TokenLogprobs
from sarathi.worker.batch import SamplingInput

EXCLUDED = float("-inf")
PREFILTER = 512  # likeliest tokens among which a top-p set is looked for before a row is sorted whole
_64_BITS = (1 << 64) - 1


class Sampler:
    """Draws one token a row.

    In this order: repetition penalty, frequency and presence penalties, forbidden tokens, temperature, min-p, top-k,
    top-p, and a draw by Gumbel's trick: the largest of logit + noise has the softmax's distribution (Maddison et al.
    2014), and a difference in the last digit of the logits, as another batch gives it, hardly ever changes it. Tokens
    that tie with the last of a top-k or top-p set are kept. The uniform numbers behind the noise have 24 bits:
    probabilities below 6e-8 are not told apart.
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
        raw = logits[asking].log_softmax(-1) if asking else None  # a copy, before anything is changed
        self._penalize(logits, rows)
        best, tokens = logits.max(-1)
        _check(best)
        drawn = [i for i, p in enumerate(params) if not p.is_greedy]
        if drawn:
            tokens[drawn] = self._draw(logits[drawn], [rows[i] for i in drawn])
        token_ids = tokens.tolist()
        if raw is None:
            return token_ids, None
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        for i, entry in zip(asking, _logprobs(raw, tokens[asking], [params[i] for i in asking]), strict=True):
            logprobs[i] = entry
        return token_ids, logprobs

    def _penalize(self, logits: Tensor, rows: Sequence[SamplingInput]) -> None:
        """Change the logits of the tokens that a penalty or a ban touches, in place."""
        flat = logits.view(-1)
        repeated = [i for i, row in enumerate(rows) if row.params.repetition_penalty != 1]
        if repeated:
            seen = {i: [*rows[i].prompt_token_ids, *rows[i].output_token_ids] for i in repeated}
            places, of_row, _ = self._places(seen)
            penalty = _each([row.params.repetition_penalty for row in rows])[of_row]
            values = flat[places]
            flat[places] = torch.where(values > 0, values / penalty, values * penalty)
        counted = [i for i, r in enumerate(rows) if r.params.frequency_penalty or r.params.presence_penalty]
        if counted:
            places, of_row, counts = self._places({i: rows[i].output_token_ids for i in counted})
            frequency = _each([row.params.frequency_penalty for row in rows])[of_row]
            flat[places] -= counts * frequency + _each([row.params.presence_penalty for row in rows])[of_row]
        forbidden = {i: row.forbidden_token_ids for i, row in enumerate(rows) if row.forbidden_token_ids}
        if forbidden:
            flat[self._places(forbidden)[0]] = EXCLUDED

    def _places(self, token_ids: dict[int, Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Of each distinct token of each row: its place in the flat logits, its row, and how often it occurs."""
        keys = [np.asarray(ids, np.int64) + row * self._vocab_size for row, ids in token_ids.items()]
        places, counts = np.unique(np.concatenate(keys), return_counts=True)
        return torch.from_numpy(places), torch.from_numpy(places // self._vocab_size), torch.from_numpy(counts)

    def _draw(self, logits: Tensor, rows: Sequence[SamplingInput]) -> Tensor:
        """One token for each row of `logits`, which is changed."""
        params = [row.params for row in rows]
        logits /= _each([p.temperature for p in params])[:, None]
        if any(p.min_p for p in params):
            bound = logits.max(-1).values + _each([p.min_p for p in params]).log()  # p_i < min_p * p_max, as logits
            logits.masked_fill_(logits < bound[:, None], EXCLUDED)
        limited = [i for i, p in enumerate(params) if 0 < p.top_k < self._vocab_size]
        if limited:
            top_k = torch.tensor([params[i].top_k for i in limited])
            best = logits[limited].topk(int(top_k.max()), -1).values
            self._exclude_below(logits, limited, best.gather(-1, top_k[:, None] - 1))
        limited = [i for i, p in enumerate(params) if p.top_p < 1]
        if limited:
            top_p = torch.tensor([params[i].top_p for i in limited], dtype=torch.float64)
            self._exclude_below(logits, limited, _top_p_bound(logits[limited], top_p[:, None], PREFILTER))
        return logits.add_(self._noise(rows)).argmax(-1)

    @staticmethod
    def _exclude_below(logits: Tensor, rows: list[int], bound: Tensor) -> None:
        full = logits.new_full((len(logits), 1), EXCLUDED)
        full[rows] = bound
        logits.masked_fill_(logits < full, EXCLUDED)

    def _noise(self, rows: Sequence[SamplingInput]) -> Tensor:
        """Standard Gumbel noise, (R, vocab_size): -log(-log u), u uniform in (0, 1)."""
        uniform = np.empty((len(rows), self._vocab_size), np.float32)
        for out, row in zip(uniform, rows, strict=True):
            bits = np.random.Philox(key=row.seed & _64_BITS, counter=row.position << 128)
            np.random.Generator(bits).random(out=out, dtype=np.float32)
        noise = torch.from_numpy(uniform).clamp_(2**-25, 1 - 2**-24)
        return noise.log_().neg_().log_().neg_()


def _top_p_bound(logits: Tensor, top_p: Tensor, width: int) -> Tensor:
    """The smallest logit of each row's nucleus, (R, 1): the fewest likeliest tokens that hold `top_p`, (R, 1)."""
    width = min(width, logits.shape[-1])
    values = logits.topk(width, -1).values
    probabilities = (values.double() - logits.double().logsumexp(-1, keepdim=True)).exp()
    before = probabilities.cumsum(-1) - probabilities  # held by the tokens ahead of each
    bound = values.gather(-1, (before < top_p).sum(-1, keepdim=True) - 1)
    wide = ((before + probabilities)[:, -1:] < top_p)[:, 0]
    if width < logits.shape[-1] and wide.any():
        bound[wide] = _top_p_bound(logits[wide], top_p[wide], 8 * width)
    return bound


def _logprobs(raw: Tensor, tokens: Tensor, params: Sequence[SamplingParams]) -> list[TokenLogprobs]:
    own = raw.gather(-1, tokens[:, None])
    ranks = (raw > own).sum(-1) + 1
    most = max(p.logprobs or 0 for p in params)
    values, ids = raw.topk(min(most, raw.shape[-1]), -1)
    return [
        TokenLogprobs(logprob, rank, tuple(zip(row_ids[:num], row_values[:num], strict=True)))
        for logprob, rank, row_ids, row_values, num in zip(
            own[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(), [p.logprobs or 0 for p in params],
            strict=True,
        )
    ]  # fmt: skip


def _each(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _check(best: Tensor) -> None:
    """`best` is each row's largest logit."""
    if not torch.isfinite(best).all():
        row = int((~torch.isfinite(best)).nonzero()[0, 0])
        what = "no token is left to sample" if best[row] == EXCLUDED else "the logits are not finite numbers"
        raise RuntimeError(f"row {row} of the round: {what} (largest logit {best[row].item()})")
