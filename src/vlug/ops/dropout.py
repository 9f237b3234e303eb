"""Random numbers that a counter makes: rng, dropout and its gradient.

The generator is Philox 4×32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
SC 2011). Block b of a seed is four 32-bit words: Philox of the counter (low and high half of b, 0, 0),
its key the halves of the seed. Element i of a tensor, in row-major order of its dims whatever its strides,
has word i mod 4 of block offset + i div 4. A tensor of n elements uses ceil(n / 4) blocks, and the next one
starts behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vlug.dtypes import I64, dtype
from vlug.errors import DTypeError
from vlug.ops.base import Array, Builder, Operation, dense_like, need, register
from vlug.tensor import Tensor

__all__ = ["Dropout", "DropoutBackward", "Rng", "philox", "words_of"]

#: Multipliers and key increments of Philox 4×32 (the paper's table 2).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
#: A number is dropped where its upper 31 bits are below p · 2^31: p is met to 2^-32.
BITS = 31


def philox(counter: Sequence[Array], key: Sequence[int]) -> list[NDArray[np.uint64]]:
    """Four 32-bit words of each counter (four arrays of 32-bit words) under a key of two words."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.asarray(w, np.uint64) for w in counter]
    k = [int(w) for w in key]
    for _ in range(ROUNDS):
        first, second = c[0] * np.uint64(MULTIPLIERS[0]), c[2] * np.uint64(MULTIPLIERS[1])
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            second & mask,
            (first >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            first & mask,
        ]
        k = [(w + i) & 0xFFFFFFFF for w, i in zip(k, INCREMENTS)]
    return c


def words_of(dim: Sequence[int], seed: int, offset: int) -> NDArray[np.uint64]:
    """The 32-bit word of every element of a tensor of these dims."""
    n = math.prod(dim)
    start = np.uint64(offset % (1 << 64))
    blocks = start + np.arange(-(-n // 4), dtype=np.uint64)  # wraps, as the counter does
    zero = np.zeros_like(blocks)
    half = np.uint64(32)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    c = philox([blocks & np.uint64(0xFFFFFFFF), blocks >> half, zero, zero], key)
    return np.stack(c, axis=-1).reshape(-1)[:n].reshape(tuple(dim))


def threshold(p: float) -> int:
    """How many of the 2^31 values of a word's upper bits mean "dropped"."""
    return round(p * (1 << BITS))


def _dropped(dim: Sequence[int], seed: Array, offset: Array, p: float) -> NDArray[np.bool_]:
    words = words_of(dim, int(seed), int(offset))
    return np.asarray(words >> np.uint64(32 - BITS) < np.uint64(threshold(p)))


@dataclass(frozen=True)
class _Random(Operation):
    def check_stream(self, seed: Tensor, offset: Tensor) -> None:
        """seed and offset are one 64-bit integer each."""
        for name, t in (("seed", seed), ("offset", offset)):
            self.expect(t.numel == 1, f"{name} {t.dim} must be one number")
            if t.dtype != I64:
                raise DTypeError(f"{self.name}: {name} is {t.dtype}, allowed is i64")


@register
@dataclass(frozen=True)
class Rng(_Random):
    """y of dims `size`: numbers of a counter-based generator.

    distribution: "uniform": low + (high - low) · u, u a multiple of 2^-24 in [0, 1) (the upper 24 bits of a
    word); "bernoulli": 1 with probability `probability`, else 0. dtype: of y, to which a number is rounded.
    """

    size: tuple[int, ...]
    distribution: str = "uniform"
    low: float = 0.0
    high: float = 1.0
    probability: float = 0.5
    dtype: str = "f32"

    name: ClassVar[str] = "rng"
    inputs: ClassVar[tuple[str, ...]] = ("seed", "offset")

    @classmethod
    def spatial_rank(cls, inputs: Sequence[Tensor | None]) -> int:
        return 1

    def attributes(self, inputs: Sequence[Tensor | None] = ()) -> dict[str, str]:
        # the rank is known from nothing else: equal sizes are not written as one
        return super().attributes(inputs) | {"size": "x".join(map(str, self.size))}

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        seed, offset = need(inputs)
        self.check_stream(seed, offset)
        self.expect(
            self.distribution in ("uniform", "bernoulli"),
            f"distribution {self.distribution!r} must be uniform or bernoulli",
        )
        self.expect(
            math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high,
            f"low {self.low} and high {self.high} must be finite, low no more than high",
        )
        self.expect(0 <= self.probability <= 1, f"probability {self.probability} must be in [0, 1]")
        self.expect(len(self.size) > 0, "size must have one dimension or more")
        kind = dtype(self.dtype, "rng: dtype")
        if kind not in self.dtypes:
            raise DTypeError(f"rng: dtype {kind} must be {', '.join(d.name for d in self.dtypes)}")
        return (Tensor.of(self.size, kind),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        seed, offset = need(inputs)
        if self.distribution == "bernoulli":
            return (1.0 - _dropped(self.size, seed, offset, 1 - self.probability),)
        u = (words_of(self.size, int(seed), int(offset)) >> np.uint64(8)).astype(np.float64) * 2.0**-24
        return (self.low + (self.high - self.low) * u,)

    @classmethod
    def samples(cls) -> Iterator[str]:
        stream = "seed=scalar:i64 offset=scalar:i64"
        yield f"rng {stream} size=3x35x6x5"
        yield f"rng {stream} size=1001 low=-1.0 high=1.0"
        yield f"rng {stream} size=7x9x33 distribution=bernoulli probability=0.3"
        yield f"rng {stream} size=40x3 dtype=f16"
        yield f"rng {stream} size=0x4"
        yield f"rng {stream} size=500 distribution=bernoulli probability=1.0"


@dataclass(frozen=True)
class _Dropout(_Random):
    p: float = 0.5

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, seed, offset = need(inputs)
        self.check_dtypes(x)
        self.check_stream(seed, offset)
        self.expect(0 <= self.p <= 1, f"p {self.p} must be in [0, 1]")
        return (Tensor(x.dim, dense_like(x, x.dim), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, seed, offset = need(inputs)
        kept = ~_dropped(x.shape, seed, offset, self.p)
        return (x * (kept * (0.0 if self.p == 1 else 1 / (1 - self.p))).astype(x.dtype),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None, None
        return g.append(DropoutBackward(self.p), (grads[0], *inputs[1:]))[0], None, None

    @classmethod
    def samples(cls) -> Iterator[str]:
        x = cls.inputs[0]
        for dims, p in (
            ("3x35x6x5", 0.5), ("1003", 0.1), ("4x7x64", 0.75), ("5x33", 0.0), ("5x33", 1.0), ("scalar", 0.5),
            ("0x3", 0.5),
        ):  # fmt: skip
            yield f"{cls.name} {x}={dims} seed=scalar:i64 offset=scalar:i64 p={p}"


@register
@dataclass(frozen=True)
class Dropout(_Dropout):
    """y = x · m, m = 0 with probability p, else 1 / (1 - p); which, the counter-based generator says.

    The same seed and offset give the same m, for any layout, dtype, number of threads and instruction set.
    NaN and infinity times 0 are NaN, as in the frameworks.
    """

    name: ClassVar[str] = "dropout"
    inputs: ClassVar[tuple[str, ...]] = ("x", "seed", "offset")


@register
@dataclass(frozen=True)
class DropoutBackward(_Dropout):
    """dx = dy · m with the m of `dropout`, made again of the same seed and offset: no mask is kept."""

    name: ClassVar[str] = "dropout_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "seed", "offset")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)
