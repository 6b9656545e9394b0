"""The compiled kernels of paged attention on a CPU: write into pages, and attend to them in place.

Plain arrays in and out, float32. How work is divided among threads is the caller's business.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from sarathi.kernels.cache import compiled
from sarathi.kernels.elementwise import exp

_F32, _U64 = np.float32, np.uint64
_LOWEST = _F32(-1e30)  # of no scores yet; finite, since fastmath knows no infinity
_LINE = 64  # bytes of a cache line


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to read it soon. An address that is not ours does no harm."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        int32 = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, int32(0), int32(2), int32(1)])  # read, into the second level, data
        return context.get_dummy_value()

    return numba.void(numba.uintp), generate


@compiled()
def write(key, value, kv_cache, blocks, offsets):
    """Put each token's key and value, (T, num_kv_heads, head_dim), into its slot: a block and an offset in it."""
    for token in range(key.shape[0]):
        block, offset = blocks[token], offsets[token]
        for head in range(key.shape[1]):
            for d in range(key.shape[2]):
                kv_cache[block, 0, head, offset, d] = key[token, head, d]
                kv_cache[block, 1, head, offset, d] = value[token, head, d]


@numba.njit(fastmath=True, inline="always")
def _add_page(query, keys, values, low, high, scale, next_page, half, scores, sums, maxima, weights):
    """Add tokens low to high of one page to the running softmax of one query's heads that share a KV head.

    query, sums: (group, head_dim); keys, values: (block_size, head_dim); maxima, weights: (group,); scores:
    (group, block_size) scratch. `next_page`, if not 0, is the address of the keys to come, `half` bytes before their
    values: asking for them token by token hides most of the memory's latency.
    """
    group, head_dim = query.shape
    for t in range(low, high):
        if next_page:
            for line in range(0, head_dim * 4, _LINE):
                key_line = next_page + _U64(t * head_dim * 4 + line)
                _prefetch(key_line)  # pyright: ignore[reportCallIssue]
                _prefetch(key_line + half)  # pyright: ignore[reportCallIssue]
        for g in range(group):
            score = _F32(0)
            for d in range(head_dim):
                score += query[g, d] * keys[t, d]
            scores[g, t] = score * scale
    for g in range(group):
        maximum = maxima[g]
        for t in range(low, high):
            maximum = max(maximum, scores[g, t])
        if maximum > maxima[g]:
            factor = exp(maxima[g] - maximum)
            maxima[g] = maximum
            weights[g] *= factor
            for d in range(head_dim):
                sums[g, d] *= factor
        weight = _F32(0)
        for t in range(low, high):
            scores[g, t] = exp(scores[g, t] - maximum)
            weight += scores[g, t]
        weights[g] += weight
    quads = low + (high - low) // 4 * 4  # four tokens at a time load and store the sums once for all
    for t in range(low, quads, 4):
        for g in range(group):
            w0, w1, w2, w3 = scores[g, t], scores[g, t + 1], scores[g, t + 2], scores[g, t + 3]
            for d in range(head_dim):
                sums[g, d] += w0 * values[t, d] + w1 * values[t + 1, d] + w2 * values[t + 2, d] + w3 * values[t + 3, d]
    for t in range(quads, high):
        for g in range(group):
            for d in range(head_dim):
                sums[g, d] += scores[g, t] * values[t, d]


@numba.njit(fastmath=True, inline="always")
def _merge(parts, first, end, starts, sums, stats, output):
    """Join the results of parts first to end, which are all of one sequence."""
    start, num_queries = starts[parts[first, 0]], starts[parts[first, 0] + 1] - starts[parts[first, 0]]
    num_heads, head_dim = output.shape[1:]
    for i in range(num_queries):
        for head in range(num_heads):
            maximum = _LOWEST
            for part in range(first, end):
                maximum = max(maximum, stats[parts[part, 3] + i, 0, head])
            weight = _F32(0)
            for part in range(first, end):
                row = parts[part, 3] + i
                weight += stats[row, 1, head] * exp(stats[row, 0, head] - maximum)
            output[start + i, head] = _F32(0)
            for part in range(first, end):
                row = parts[part, 3] + i
                share = exp(stats[row, 0, head] - maximum) / weight
                for d in range(head_dim):
                    output[start + i, head, d] += share * sums[row, head, d]


@compiled(parallel=True, fastmath=True)
def attend(query, kv_cache, tables, starts, context_lens, parts, bounds, scale, window, sums, stats, output):
    """Attention page by page with a running softmax (Milakov and Gimelshein 2018), a sequence on several threads.

    Args:
        query, output: (T, num_heads, head_dim). kv_cache, tables, starts, context_lens: as in Batch and the backend.
        parts: (P, 5) int64: sequence, first block, end block, first row of sums and stats, and how many neighbours
            make up the sequence (0 for those after its first). Thread i has parts bounds[i] to bounds[i + 1].
        sums: (rows, num_heads, head_dim) scratch: values weighted by e^(score - maximum).
        stats: (rows, 2, num_heads) scratch: the maximum of the scores, and the sum of those weights.
    """
    num_kv_heads, block_size = kv_cache.shape[2], kv_cache.shape[3]
    group = query.shape[1] // num_kv_heads
    base, page_bytes, half = _U64(kv_cache.ctypes.data), _U64(kv_cache.strides[0]), _U64(kv_cache.strides[1])
    for thread in numba.prange(len(bounds) - 1):
        scores = np.empty((group, block_size), np.float32)
        for part in range(bounds[thread], bounds[thread + 1]):
            seq, first_block, end_block, row, num_parts = parts[part]
            num_queries = starts[seq + 1] - starts[seq]
            sums[row : row + num_queries] = _F32(0)
            stats[row : row + num_queries, 0] = _LOWEST
            stats[row : row + num_queries, 1] = _F32(0)
            for block in range(first_block, end_block):
                page = tables[seq, block]
                next_page = base + _U64(tables[seq, min(block + 1, end_block - 1)]) * page_bytes
                for kv_head in range(num_kv_heads):
                    heads = slice(kv_head * group, (kv_head + 1) * group)
                    for i in range(num_queries):
                        end = context_lens[seq] - num_queries + i + 1
                        low = max(0, end - window - block * block_size)
                        high = min(block_size, end - block * block_size)
                        if low < high:
                            _add_page(
                                query[starts[seq] + i, heads],
                                kv_cache[page, 0, kv_head],
                                kv_cache[page, 1, kv_head],
                                low,
                                high,
                                scale,
                                next_page + _U64(kv_head * kv_cache.strides[2]) if i == 0 else _U64(0),
                                half,
                                scores,
                                sums[row + i, heads],
                                stats[row + i, 0, heads],
                                stats[row + i, 1, heads],
                            )
            if num_parts == 1:
                _merge(parts, part, part + 1, starts, sums, stats, output)
    for part in range(len(parts)):  # at most one sequence a thread: not worth a second start of the threads
        if parts[part, 4] > 1:
            _merge(parts, part, part + parts[part, 4], starts, sums, stats, output)
