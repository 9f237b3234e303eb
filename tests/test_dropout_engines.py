"""Random numbers: known answers, one mask for every layout, type, ISA and thread count, exact rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vlug
from native_check import check, execute, normal
from vlug import config
from vlug.codegen.isa import runnable
from vlug.engines.cpu.dropout import DropoutEngine
from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.ops.dropout import philox, words_of
from vlug.runtime.device import host

ENGINE = DropoutEngine()
SAMPLES = [line for name in ("rng", "dropout", "dropout_backward") for line in OPERATIONS[name].samples()]
STREAM = "seed=scalar:i64 offset=scalar:i64"


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's kat_vectors, philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert tuple(int(w) for w in philox([np.array(c) for c in counter], key)) == words


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    for seed, offset in ((7, 0), (-(1 << 62) - 3, (1 << 32) - 5), (1, -9)):
        stream = {"seed": np.array(seed), "offset": np.array(offset)}
        check(ENGINE, line, normal(Graph.parse(line)) | stream)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize(
    "x",
    [
        "3x35x6x5:K:nhwc", "5x7x33:K:s1000x40x1", "5x7x32:K:s1000x40x1", "2x3x4:K:s1x2x6", "9:K:s3",
        "3x5:K:s0x1", "40000:K", "2x20001:K:s30000x1",
    ],
)  # fmt: skip
def test_layouts_and_types(x: str, kind: str) -> None:
    check(ENGINE, f"dropout x={x.replace('K', kind)} {STREAM} p=0.3", tolerance=1)


def test_the_result_has_its_own_layout() -> None:
    check(ENGINE, f"dropout x=3x8x6x5 {STREAM} -> y=3x8x6x5:f32:nhwc")
    check(ENGINE, f"rng {STREAM} size=3x8x6x5 dtype=bf16 -> y=3x8x6x5:bf16:nhwc", tolerance=1)
    check(ENGINE, f"rng {STREAM} size=77 distribution=bernoulli dtype=f64")


def test_results_past_the_caches() -> None:
    check(ENGINE, f"dropout x=3500009 {STREAM}")
    check(ENGINE, f"dropout x=3500032 {STREAM}")


def test_one_mask_for_all() -> None:
    """Layout, type, threads and instruction set change nothing; the offset moves along one stream."""
    ones = np.ones((6, 35, 9, 11), np.float32)
    want = vlug.dropout(ones, 0.4, seed=11)
    word = words_of(ones.shape, 11, 0) >> np.uint64(1)
    np.testing.assert_array_equal(want == 0, word < round(0.4 * 2**31))
    last = np.ascontiguousarray(ones.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for x in (ones.astype(np.float64), ones.astype(np.float16), last, np.repeat(ones, 2, 3)[..., ::2]):
        np.testing.assert_array_equal(vlug.dropout(x, 0.4, seed=11) == 0, want == 0)
    for isa in runnable():
        for threads in (1, 2, 5):
            with config.ISA.using(isa.name), config.THREADS.using(threads):
                np.testing.assert_array_equal(vlug.dropout(ones, 0.4, seed=11), want)
    flat = want.reshape(-1)
    tail = vlug.dropout(ones.reshape(-1)[400:], 0.4, seed=11, offset=100)
    np.testing.assert_array_equal(tail, flat[400:])
    dy = np.full(ones.shape, 2, np.float32)
    np.testing.assert_array_equal(vlug.dropout_backward(dy, 0.4, seed=11), 2 * want)
    assert (vlug.dropout(ones, 0.4, seed=12) != want).mean() > 0.4


def test_a_new_seed_costs_no_plan() -> None:
    from vlug import plan

    x = np.ones(1000, np.float32)
    vlug.dropout(x, seed=1)
    before = len(plan._plans)
    for seed in range(2, 9):
        vlug.dropout(x, seed=seed, offset=seed)
    assert len(plan._plans) == before


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_the_rate_is_p(p: float) -> None:
    n = 1 << 21
    kept = vlug.dropout(np.ones(n, np.float32), p, seed=5)
    dropped = int((kept == 0).sum())
    if p in (0.0, 1.0):
        assert dropped == p * n
        return
    # 5 standard deviations: one false alarm in a million seeds
    assert abs(dropped - p * n) < 5 * math.sqrt(n * p * (1 - p)) + 1
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / (1 - p))}
    ones = int(vlug.rng(n, seed=5, distribution="bernoulli", probability=1 - p).sum(dtype=np.float64))
    assert abs(n - ones - dropped) <= 1  # the same numbers, 1 - (1 - p) rounded once more


def test_uniform_numbers() -> None:
    n = 1 << 20
    u = vlug.rng((n // 64, 64), seed=3)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * n)
    assert abs(np.corrcoef(u.reshape(-1)[:-1], u.reshape(-1)[1:])[0, 1]) < 5 / math.sqrt(n)
    bins = np.histogram(u, 256, (0, 1))[0]
    chi = float(((bins - n / 256) ** 2 / (n / 256)).sum())
    assert abs(chi - 255) < 5 * math.sqrt(2 * 255)
    wide = vlug.rng(n, seed=3, low=-4, high=4, dtype="f64")
    np.testing.assert_array_equal(wide, u.reshape(-1).astype(np.float64) * 8 - 4)


def test_nan_goes_through_and_inf_becomes_nan() -> None:
    x = np.array([np.nan, np.inf, 1.0] * 40, np.float32)
    y = vlug.dropout(x, 0.5, seed=2)
    assert np.isnan(y[::3]).all()
    assert set(np.isnan(y[1::3])) == {True, False}
    g = Graph.parse(f"dropout x=120 {STREAM} p=1.0")
    got = execute(ENGINE, g, {"x": np.ones(120, np.float32), "seed": np.array(3), "offset": np.array(0)})
    assert not got["y"].any()


def test_bad_arguments_are_named() -> None:
    x = np.ones(4, np.float32)
    for call, error, words in (
        (lambda: vlug.dropout(x, 1.5, seed=0), ShapeError, "p 1.5"),
        (lambda: vlug.dropout(x, float("nan"), seed=0), ShapeError, "p nan"),
        (lambda: vlug.dropout(x, 0.5, seed=1 << 64), BadInput, "seed"),
        (lambda: vlug.dropout(x, 0.5, seed=0.5), BadInput, "seed: 0.5 must be an integer"),
        (lambda: vlug.dropout(x.astype(int), 0.5, seed=0), DTypeError, "x is i64"),
        (lambda: vlug.rng((3, -1), seed=0), BadInput, "size"),
        (lambda: vlug.rng(3, seed=0, dtype="i64"), DTypeError, "dtype"),
        (lambda: vlug.rng(3, seed=0, distribution="normal"), ShapeError, "distribution 'normal'"),
        (lambda: vlug.rng(3, seed=0, low=2, high=1), ShapeError, "low 2.0"),
    ):
        with pytest.raises(error, match=words):
            call()
    with pytest.raises(DTypeError, match="seed is f32"):
        Graph.parse("dropout x=3 seed=scalar offset=scalar:i64")
    assert "not one of" in (ENGINE.why_not(Graph.parse("relu x=3"), host()) or "")

