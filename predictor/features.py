"""What the latency predictor sees of a round: one definition for collecting, training and scheduling.

Knows rounds.csv columns, plans and numpy, no model and no file. `python -m predictor.features` prints the features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.request import Request

# Name: what it counts. The order is that of the arrays' columns and of every model file.
RAW_FEATURES: dict[str, str] = {
    "prefill_tokens": "prompt tokens computed in the round",
    "decode_tokens": "decodes in the round, one token each",
    "batch_request_count": "requests in the round, a candidate prefill included",
    "sum_decode_context_len": "context lengths of the decodes, summed; the token now computed counts",
    "max_decode_context_len": "longest context among the decodes",
    "prefill_processed_tokens": "tokens that the round's prefills had computed before it, summed",
    "max_prefill_processed_tokens": "the most that one of the round's prefills had computed before it",
    "gpu_mem_used_mb": "device memory in use, as the last result before the round told it (MB)",
    "gpu_mem_free_mb": "device memory that is free, likewise (MB)",
    "cuda_allocated_mb": "memory that tensors hold in the process, likewise (MB)",
    "cuda_reserved_mb": "memory that the process's allocator holds, likewise (MB)",
}
DERIVED_FEATURES: dict[str, str] = {
    "bias": "1",
    "scheduled_tokens": "decode_tokens + prefill_tokens",
    "avg_decode_ctx": "sum_decode_context_len / max(decode_tokens, 1)",
    "decode_ctx_interaction": "decode_tokens * avg_decode_ctx",
    "prefill_interaction": "prefill_tokens * prefill_processed_tokens",
}
# Beyond the paper's 16; a model says which it uses, and none has to.
EXTRA_FEATURES: dict[str, str] = {
    "tile_tokens": "scheduled_tokens rounded up to rows that a GEMM computes: 16, 32, 64 or a multiple of 128",
}

# The rounds.csv column of each raw feature.
ROUND_COLUMNS: dict[str, str] = {
    **{name: name for name in RAW_FEATURES},
    "prefill_tokens": "batch_num_prefill_tokens",
    "decode_tokens": "batch_num_decode_tokens",
    "batch_request_count": "batch_size",
}
NUM_RAW = len(RAW_FEATURES)
NUM_FEATURES = NUM_RAW + len(DERIVED_FEATURES)
MEMORY_COLUMNS = slice(7, 11)  # of the raw features
SCHEDULED_TOKENS = NUM_RAW + 1  # its column among the derived

TILE = 128
_SMALL_TILES = np.array([0] + [16] * 16 + [32] * 16 + [64] * 32)


def from_rounds(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Raw features (n, 11) of n recorded rounds from their rounds.csv columns.

    Raises ValueError naming the columns that are missing.
    """
    missing = [column for column in ROUND_COLUMNS.values() if column not in columns]
    if missing:
        raise ValueError(f"rounds: column(s) {', '.join(missing)} are missing; a rounds.csv has them")
    return np.column_stack([np.asarray(columns[column], dtype=np.float64) for column in ROUND_COLUMNS.values()])


def from_plan(request: Request, chunks: np.ndarray, plan: BatchPlan, memory: MemoryStats) -> np.ndarray:
    """Raw features (len(chunks), 11) of the round, were `request` given each of `chunks` on top of the plan.

    chunks: tokens, at least 1 each. memory: of the last result.
    """
    computed = request.num_computed_tokens
    num_decodes = len(plan.decodes)
    raw = np.empty((len(chunks), NUM_RAW))
    raw[:] = (
        plan.num_prefill_tokens,
        num_decodes,
        num_decodes + len(plan.prefills) + 1,
        plan.sum_decode_context_len,
        plan.max_decode_context_len,
        plan.prefill_processed_tokens + computed,
        max(plan.max_prefill_processed_tokens, computed),
        *memory,
    )
    raw[:, 0] += chunks
    return raw


def derive(raw: np.ndarray, extras: Sequence[str] = ()) -> np.ndarray:
    """Features (n, 16 + len(extras)): the raw (n, 11), the derived, then the extras asked for.

    Raises ValueError for an extra that does not exist.
    """
    features = np.empty((len(raw), NUM_FEATURES + len(extras)))
    features[:, :NUM_RAW] = raw
    prefill_tokens, decode_tokens, context = raw[:, 0], raw[:, 1], raw[:, 3]
    features[:, 11] = 1.0
    scheduled = np.add(prefill_tokens, decode_tokens, out=features[:, SCHEDULED_TOKENS])
    average = np.divide(context, np.maximum(decode_tokens, 1.0), out=features[:, 13])
    np.multiply(decode_tokens, average, out=features[:, 14])
    np.multiply(prefill_tokens, raw[:, 5], out=features[:, 15])
    for column, name in enumerate(extras, NUM_FEATURES):
        if name != "tile_tokens":
            raise ValueError(f"extra feature: {name!r} is not allowed; one of {', '.join(EXTRA_FEATURES)}")
        features[:, column] = round_to_tile(scheduled)
    return features


def round_to_tile(num_rows: np.ndarray) -> np.ndarray:
    """Rows that a GEMM computes for `num_rows`: the next of 0, 16, 32, 64, then multiples of 128."""
    rows = num_rows.astype(np.int64)
    return np.where(rows > 64, -(-rows // TILE) * TILE, _SMALL_TILES[np.minimum(rows, 64)])


def feature_names(extras: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns of `derive(raw, extras)`."""
    return (*RAW_FEATURES, *DERIVED_FEATURES, *extras)


def main() -> None:
    for title, features in (
        ("Raw features (the paper's Table 1)", RAW_FEATURES),
        ("Derived features (the paper's Table 2)", DERIVED_FEATURES),
        ("Extra features, which a model may add", EXTRA_FEATURES),
    ):
        print(f"{title}\n" + "\n".join(f"  {name:<30}{definition}" for name, definition in features.items()))


if __name__ == "__main__":
    main()
