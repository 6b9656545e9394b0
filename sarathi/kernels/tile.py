"""The inner loop of a matrix product on a CPU, written as LLVM instructions: a small tile of C = A B in registers.

Knows addresses and sizes only. Who blocks the matrices around it, and for which threads, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core.registry import cpu_target
from numba.extending import intrinsic

VECTORS = 3  # of B that a step of the inner loop reads; with 8 rows their 24 sums fill most of 32 registers
# What numba compiles for: this CPU's, unless its settings (NUMBA_CPU_FEATURES and the like) say otherwise.
_FEATURES = frozenset(cpu_target.target_context.codegen().magic_tuple()[2].split(","))  # pyright: ignore
HAS_FMA = "+avx512f" in _FEATURES or {"+avx2", "+fma"} <= _FEATURES  # what it was measured on
LANES = 16 if "+avx512f" in _FEATURES else 8 if HAS_FMA else 4
ROWS = 8 if LANES == 16 else 4  # AVX2 has 16 registers
PANEL = VECTORS * LANES  # columns of a tile

_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


def make_tile(num_rows: int, lanes: int = LANES) -> Callable[..., None]:
    """A function for numba, tile(a, lda, b, c, ldc, depth, start): all int64, addresses of float32 and counts.

    c[r, j] = start[r, j] + sum of a[r, d] b[d, j] over d < depth, for r < num_rows and j < VECTORS * lanes, as Goto and
    van de Geijn (2008) have it: sums stay in registers, `a` is broadcast value by value, `b` is read in order. Row
    strides are lda floats, and ldc of both c and start; b is packed, its address a multiple of a vector's size. A start
    of 0 stands for zeros.
    """
    vector = ir.VectorType(_FLOAT, lanes)

    @intrinsic
    def tile(typing_context: Any, a: Any, lda: Any, b: Any, c: Any, ldc: Any, depth: Any, start: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _Tile(builder, vector, num_rows, *arguments).emit()
            return context.get_dummy_value()

        return numba.void(*[numba.int64] * 7), generate

    return tile


class _Tile:
    """One tile under construction: the blocks before, in and after the loop over depth."""

    def __init__(
        self, builder: ir.IRBuilder, vector: ir.VectorType, num_rows: int, a: Any, lda: Any, b: Any, c: Any, ldc: Any,
        depth: Any, start: Any,
    ) -> None:  # fmt: skip
        self.builder, self.vector, self.rows = builder, vector, range(num_rows)
        self.b, self.depth, self.start = b, depth, start
        self.a_rows = [self._offset(a, lda, 4 * row) for row in self.rows]
        self.c_rows = [self._offset(c, ldc, 4 * row) for row in self.rows]
        self.start_rows = [self._offset(start, ldc, 4 * row) for row in self.rows]
        self.vector_bytes = 4 * vector.count

    def emit(self) -> None:
        builder = self.builder
        before = builder.block
        with builder.if_then(builder.icmp_signed("!=", self.start, _INT64(0))):
            kept = [[builder.load(pointer, align=4) for pointer in row] for row in self._pointers(self.start_rows)]
            loading = builder.block
        loop, after = builder.append_basic_block("depth"), builder.append_basic_block("sums")
        nothing = ir.Constant(self.vector, [0.0] * self.vector.count)
        starts: list[list[Any]] = []
        for row in kept:
            starts.append([])
            for value in row:
                start = builder.phi(self.vector)
                start.add_incoming(nothing, before)
                start.add_incoming(value, loading)
                starts[-1].append(start)
        entry = builder.block
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_INT64)
        sums = [[builder.phi(self.vector) for _ in row] for row in starts]
        added = self._step(step, sums)
        following = builder.add(step, _INT64(1))
        for phi, first, next_ in [(step, _INT64(0), following), *_zipped(sums, starts, added)]:
            phi.add_incoming(first, entry)
            phi.add_incoming(next_, loop)
        builder.cbranch(builder.icmp_signed("<", following, self.depth), loop, after)
        builder.position_at_end(after)
        for values, pointers in zip(added, self._pointers(self.c_rows), strict=True):
            for value, pointer in zip(values, pointers, strict=True):
                builder.store(value, pointer, align=4)

    def _step(self, step: Any, sums: list[list[Any]]) -> list[list[Any]]:
        """Add the product of one column of A and one row of B."""
        builder = self.builder
        b_row = self._offset(self.b, step, VECTORS * self.vector_bytes)
        b = [builder.load(self._pointer(b_row, i), align=self.vector_bytes) for i in range(VECTORS)]
        added = []
        for row, row_sums in zip(self.a_rows, sums, strict=True):
            value = _broadcast(builder, self.vector, self._offset(row, step, 4))
            added.append([_fused_multiply_add(builder, value, b[i], row_sums[i]) for i in range(VECTORS)])
        return added

    def _pointers(self, rows: list[Any]) -> list[list[Any]]:
        return [[self._pointer(row, i) for i in range(VECTORS)] for row in rows]

    def _pointer(self, address: Any, index: int) -> Any:
        place = self.builder.add(address, _INT64(index * self.vector_bytes))
        return self.builder.inttoptr(place, self.vector.as_pointer())

    def _offset(self, address: Any, count: Any, size: int) -> Any:
        return self.builder.add(address, self.builder.mul(count, _INT64(size)))


def _zipped(*grids: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [values for rows in zip(*grids, strict=True) for values in zip(*rows, strict=True)]


def _broadcast(builder: ir.IRBuilder, vector: ir.VectorType, address: Any) -> Any:
    """The float32 at an address in every lane."""
    value = builder.load(builder.inttoptr(address, _FLOAT.as_pointer()), align=4)
    undefined = ir.Constant(vector, ir.Undefined)
    to_all = ir.Constant(ir.VectorType(_INT32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(builder.insert_element(undefined, value, _INT32(0)), undefined, to_all)


def _fused_multiply_add(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of vectors, rounded once."""
    name, module = f"llvm.fma.v{a.type.count}f32", builder.module
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(a.type, [a.type] * 3), name)
    return builder.call(function, [a, b, c])
