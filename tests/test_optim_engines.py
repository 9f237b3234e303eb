"""Steps of optimisers: against their definition, lists of parameters, in place, against PyTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vlug
from native_check import check, execute
from vlug.engines.cpu.optim import OptimEngine
from vlug.errors import BadInput, DTypeError, ShapeError
from vlug.graph import Graph
from vlug.ops.base import OPERATIONS
from vlug.runtime.device import host
from vlug.testing_fills import fill

ENGINE = OptimEngine()
SAMPLES = [line for name in ("sgd_step", "adam_step") for line in OPERATIONS[name].samples()]
SGD = "lr=scalar:f64 momentum=scalar:f64 dampening=scalar:f64 weight_decay=scalar:f64"
ADAM = " ".join(f"{s}=scalar:f64" for s in ("step", "lr", "beta1", "beta2", "eps", "weight_decay"))


def inputs(line: str, seed: int = 0) -> dict[str, np.ndarray]:
    g = Graph.parse(line)
    return {n: a.astype(g.tensors[n].dtype.numpy) for n, a in fill(g, "real", seed).items()}


@pytest.mark.parametrize("line", SAMPLES)
def test_samples(line: str) -> None:
    for seed in range(3):
        check(ENGINE, line, inputs(line, seed))


@pytest.mark.parametrize(
    "full",
    [
        "3x35x6x5:f32:nhwc", "3x35x6x5:f32:s2000x50x6x1", "40:f32:s3", "5x7:f64:s1x5", "50:bf16", "50:f16",
        "9x33:f64", "2x40000:f32:s50000x1",
    ],
)  # fmt: skip
def test_layouts_and_types(full: str) -> None:
    for line in (
        f"sgd_step p={full} g={full} buf={full} {SGD}",
        f"adam_step p={full} g={full} m={full} v={full} vmax={full} {ADAM}",
        f"adam_step p={full} g={':'.join(full.split(':')[:2])} m={full} v={full} {ADAM} decoupled=1",
    ):
        check(ENGINE, line, inputs(line))


def test_in_place() -> None:
    line = f"adam_step p=5000 g=5000 m=5000 v=5000 {ADAM}"
    check(ENGINE, line, inputs(line), alias={"next_p": "p", "next_m": "m", "next_v": "v"})
    line = f"sgd_step p=50x30:f32:s40x1 g=50x30 buf=50x30 {SGD} -> next_p=50x30:f32:s40x1, next_buf"
    check(ENGINE, line, inputs(line), alias={"next_p": "p", "next_buf": "buf"})


def test_an_infinite_parameter_without_weight_decay_stays_itself() -> None:
    line = f"adam_step p=40 g=40 m=40 v=40 {ADAM}"
    values = inputs(line) | {"weight_decay": np.array(0.0)}
    values["p"][3], values["g"][5] = np.inf, np.nan
    got = execute(ENGINE, Graph.parse(line), values)
    assert got["next_p"][3] == np.inf
    assert np.isfinite(got["next_m"][3])
    assert np.flatnonzero(np.isnan(got["next_p"])).tolist() == [5]


def test_a_step_that_is_no_whole_number_writes_nothing() -> None:
    g = Graph.parse(f"adam_step p=40 g=40 m=40 v=40 {ADAM}")
    for step in (1.5, -1.0, -3.0, np.nan, np.inf):
        got = execute(ENGINE, g, inputs(g.line) | {"step": np.array(step)}, code=21)
        assert np.isnan(got["next_p"]).all()


def test_many_steps_and_their_powers() -> None:
    g = Graph.parse(f"adam_step p=40:f64 g=40:f64 m=40:f64 v=40:f64 {ADAM}")
    for step in (1, 2, 3, 999, 12345, 1 << 24, (1 << 40) + 3):
        values = inputs(g.line) | {"step": np.array(float(step))}
        check(ENGINE, g.line, values, tolerance=64)


def test_refusals_say_why() -> None:
    names = ("lr", "momentum", "dampening", "weight_decay")
    first = f"sgd_step p=3 g=3 {SGD} -> a"
    again = f"sgd_step p:p2=4 g:g2=4 {' '.join(f'{s}={s}' for s in names)}"
    spaced = again.replace("p:p2=4", "p:p2=4:f32:s2")
    chained = again.replace("p:p2=4 g:g2=4", "p=a g=g")
    for line, word in (
        ("relu x=3", "not a step"),
        (f"{first}; {again} maximize=1 -> b", "different rules"),
        (f"{first}; {spaced} -> b=4:f32", "strides that differ"),
        (f"{first}; {chained} -> b", "reads another's result"),
    ):
        assert word in (ENGINE.why_not(Graph.parse(line), host()) or ""), line


# --- the functional calls ---
SHAPES = ((64, 3, 5, 5), (64,), (100, 70), (1,), (0, 3), (33, 7))


def arrays(seed: int, kind: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(kind) for s in SHAPES]


ADAMS = [
    {}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True, "betas": (0.8, 0.95)},
    {"decoupled": True}, {"decoupled": True, "amsgrad": True, "weight_decay": 0.3},
]  # fmt: skip
SGDS = [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.2, "maximize": True}, {"weight_decay": 0.1, "maximize": True},
]  # fmt: skip


@pytest.mark.framework
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("options", ADAMS)
def test_adam_is_pytorchs(options: dict[str, Any], kind: str) -> None:
    torch = pytest.importorskip("torch")
    decoupled, amsgrad = options.get("decoupled", False), options.get("amsgrad", False)
    rest = {k: v for k, v in options.items() if k not in ("decoupled", "amsgrad")}
    p = arrays(0, kind)
    theirs = [torch.tensor(x, requires_grad=True) for x in p]
    cls = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = cls(theirs, lr=0.01, amsgrad=amsgrad, **rest)
    m, v = ([np.zeros_like(x) for x in p] for _ in range(2))
    vmax = [np.zeros_like(x) for x in p] if amsgrad else None
    call = vlug.adamw_step if decoupled else vlug.adam_step
    for step in range(1, 5):
        g = arrays(step, kind)
        for a, b in zip(theirs, g):
            a.grad = torch.tensor(b)
        optimizer.step()
        call(p, g, m, v, vmax, step=step, lr=0.01, **rest)
    eps = np.finfo(kind).eps
    for a, b in zip(theirs, p):
        np.testing.assert_allclose(b, a.detach().numpy(), rtol=32 * eps, atol=32 * eps)


@pytest.mark.framework
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("options", SGDS)
def test_sgd_is_pytorchs(options: dict[str, Any], kind: str) -> None:
    torch = pytest.importorskip("torch")
    p = arrays(0, kind)
    theirs = [torch.tensor(x, requires_grad=True) for x in p]
    optimizer = torch.optim.SGD(theirs, lr=0.01, **options)
    buf = [np.full_like(x, np.nan) for x in p] if "momentum" in options else None
    for step in range(1, 5):
        g = arrays(step, kind)
        for a, b in zip(theirs, g):
            a.grad = torch.tensor(b)
        optimizer.step()
        vlug.sgd_step(p, g, buf, lr=0.01, first=buf is not None and step == 1, **options)
    eps = np.finfo(kind).eps
    for a, b in zip(theirs, p):
        np.testing.assert_allclose(b, a.detach().numpy(), rtol=32 * eps, atol=32 * eps)


def test_lists_of_mixed_layouts_and_types_step_as_each_alone() -> None:
    import ml_dtypes

    def made(seed: int) -> list[np.ndarray]:
        a, b, c, d, e, f = arrays(seed)
        wide = np.zeros((100, 90), np.float32)
        wide[:, :70] = c
        low = b.astype(ml_dtypes.bfloat16)
        return [a.transpose(1, 2, 3, 0), low, wide[:, :70], d.astype(np.float64), e, f.T]

    p, g, m, v = made(0), made(1), [np.zeros_like(x) for x in made(2)], [np.zeros_like(x) for x in made(3)]
    alone = [[x.copy(order="K") for x in row] for row in (p, m, v)]
    vlug.adam_step(p, g, m, v, step=3)
    for i in range(len(p)):
        vlug.adam_step(alone[0][i], g[i], alone[1][i], alone[2][i], step=3)
        for a, b in zip((p, m, v), alone):
            np.testing.assert_array_equal(a[i], b[i])


def test_a_new_step_and_rate_cost_no_plan() -> None:
    from vlug import plan

    p, g, m, v = (arrays(i) for i in range(4))
    v = [np.abs(x) for x in v]
    vlug.adam_step(p, g, m, v, step=1)
    before = len(plan._plans)
    for step in range(2, 12):
        vlug.adam_step(p, g, m, v, step=step, lr=0.1 / step, betas=(1 - 1 / step, 0.99))
    assert len(plan._plans) == before


def test_bad_arguments_are_named() -> None:
    p, g, m, v = (np.ones(4, np.float32) for _ in range(4))
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    for call, error, words in (
        (lambda: vlug.adam_step(p, g, m, v, step=0), BadInput, "step: 0"),
        (lambda: vlug.adam_step(p, g, m, v, step=1.5), BadInput, "step: 1.5"),
        (lambda: vlug.adam_step([p], [g], [m], [v], step=[1, 2]), ShapeError, "step: 2 numbers came for 1"),
        (lambda: vlug.adam_step(p, g, m, v, step=1, betas=0.9), BadInput, "betas"),
        (lambda: vlug.adam_step(p, g, m, v, step=1, betas=(0.9, 1.0)), BadInput, "betas"),
        (lambda: vlug.adam_step(p, g, m, v, step=1, lr="x"), BadInput, "lr"),
        (lambda: vlug.adam_step([p], [g, g], [m], [v], step=1), ShapeError, "g: 2 arrays came for 1"),
        (lambda: vlug.adam_step(p, g[:3], m, v, step=1), ShapeError, "g .* must have the dims of p"),
        (lambda: vlug.adam_step(p, g, m.astype(np.float64), v, step=1), DTypeError, "m is f64"),
        (lambda: vlug.adam_step(frozen, g, m, v, step=1), BadInput, "p: the array is read-only"),
        (lambda: vlug.adam_step([p], [p], [m], [v], step=1), BadInput, "overlaps"),
        (lambda: vlug.adam_step([p, p], [g, g], [m, m * 1], [v, v * 1], step=1), BadInput, "overlaps"),
        (lambda: vlug.adam_step(p[::-1], g, m, v, step=1), BadInput, "p: negative strides"),
        (lambda: vlug.sgd_step(p, g, lr=0.1, momentum=0.9), BadInput, "buf: momentum"),
        (lambda: vlug.sgd_step(p, g, m, lr=0.1), BadInput, "momentum: 0 beside buffers"),
        (lambda: vlug.sgd_step([[1]], [g], lr=0.1), BadInput, r"p\[0\]: list is no array"),
        (lambda: vlug.sgd_step(p.astype(int), g, lr=0.1), DTypeError, "p is i64"),
        (lambda: vlug.sgd_step(np.broadcast_to(p[:1], 4), g, lr=0.1), BadInput, "read-only"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert all((x == 1).all() for x in (p, g, m, v)), "nothing was written"
