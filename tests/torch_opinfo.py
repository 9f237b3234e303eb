"""PyTorch's own samples of its operators (OpInfo), on against off: what reaches an operator that vlug takes.

A sample is an operator's inputs and attributes as PyTorch's developers chose them. Each is run with stock's
kernels and with ours forced: as a function, on non-contiguous inputs, in place, with `out`, with gradients.
Strides, dtypes, errors, warnings, integers, NaN and infinities must be the same, and an argument that stock's
call leaves alone keeps its bits. Each other number of ours may lie from the result in float64 at most

- twice as far as stock's does, and two units in its last place more; or, where it is no better than that,
- (2 R + 2 eps) times the size of what it was computed from. That size is the number's own and how far it
  moves, in units of eps, when each input and each result on the way, also of the steps of an operator's
  formula as PyTorch decomposes it, is off by a rounding (the root mean square of 16 such runs of stock in
  float64; Monte Carlo arithmetic, Parker 1997). R is stock's largest error in these units, in any number of
  the same tensor, at the inputs and at 16 that are off by a rounding. So where numbers cancel, both sides are
  measured by what was cancelled; where none do it is a relative bound. (One number says little of how exact
  stock is: that its sum comes out right to the last bit is luck.)

Nothing is allowed that is not relative to the number or to what it comes from. In float64 the best known
result is stock's own; its error there is taken to be the one it makes in float32, in units of eps, at 16
inputs that are off by a rounding, and half as much again because ours is measured from stock's.
Whatever reaches no operator of ours (all are denied in stock's run, and count it) is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from vlug.frontends import hooks
from vlug.frontends.torch.control import DENIED, ON

__all__ = ["DTYPES", "Sweep", "op_infos"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Runs of stock's at inputs that are off by a rounding.
RUNS = 16
Call = Callable[[Any], Any]


def op_infos() -> dict[str, Any]:
    """PyTorch's operators by name and variant. Importing them takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}


def _held(t: Any) -> Any:
    """A tensor's copy in memory of its own with the same strides and offset."""
    if not isinstance(t, torch.Tensor):
        return t
    if (
        t.device.type != "cpu"
        or t.layout is not torch.strided
        or t.is_conj()
        or t.is_neg()
        or type(t) is not torch.Tensor
    ):
        return t.detach().clone().requires_grad_(t.requires_grad)
    memory = t.untyped_storage().clone()
    made = torch.empty(0, dtype=t.dtype).set_(memory, t.storage_offset(), t.shape, t.stride())
    return made.requires_grad_(t.requires_grad)


@dataclass
class Outcome:
    """What a call gave: results, or an error; and its warnings."""

    results: list[Any] = field(default_factory=list)
    error: str = ""
    warnings: list[str] = field(default_factory=list)


def _run(call: Callable[[], Any]) -> Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            results, error = tree_flatten(call())[0], ""
        except Exception as e:
            results, error = [], f"{type(e).__name__}: {e}"
    return Outcome(results, error, sorted(f"{w.category.__name__}: {w.message}" for w in caught))


def _eps(dtype: Any) -> float:
    return float(torch.finfo(dtype).eps)


def differ(
    stock: Outcome, ours: Outcome, exact: Outcome, moved: Sequence[tuple[Outcome, Outcome, Outcome]] = ()
) -> str:
    """What is wrong with ours, or nothing.

    moved: of inputs that are off by a rounding the outcomes of stock, the exact ones, and exact ones with
    every operator's result off by a rounding too.
    """
    if (stock.error, stock.warnings) != (ours.error, ours.warnings):
        return f"stock: {stock.error or stock.warnings}, ours: {ours.error or ours.warnings}"
    if len(stock.results) != len(ours.results):
        return f"{len(stock.results)} results of stock, {len(ours.results)} of ours"
    known = exact.results if not exact.error and len(exact.results) == len(stock.results) else None
    for i, (a, b) in enumerate(zip(stock.results, ours.results)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b and (type(a) is not type(b) or (a != b and not (a != a and b != b))):
                return f"result {i}: {a} of stock, {b} of ours"
            continue
        if a.layout is not b.layout:
            return f"result {i}: {a.layout} of stock, {b.layout} of ours"
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        form = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad, t.storage_offset()) for t in (a, b)]
        if form[0] != form[1]:
            return f"result {i}: {form[0]} of stock, {form[1]} of ours"
        a, b = _numbers(a), _numbers(b)
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return f"result {i}: values differ"
            continue
        e = _like(known[i] if known else None, a)
        near = [
            [_like(o.results[i], a) for o in three]
            for three in moved
            if all(len(o.results) == len(stock.results) for o in three)
        ]
        near = [three for three in near if all(t is not None for t in three)]
        found = _apart(a.double(), b.double(), a.double() if e is None else e, torch.finfo(a.dtype), near)
        if found:
            return f"result {i}: {found}"
    return ""


def _numbers(t: Any) -> Any:
    """The values, complex ones as pairs."""
    t = t.detach()
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _like(t: Any, a: Any) -> Any:
    """The values in float64 if they can be compared with those of a."""
    if not isinstance(t, torch.Tensor):
        return None
    t = _numbers(t if t.layout is torch.strided else t.to_dense())
    return t.double() if t.shape == a.shape and t.is_floating_point() else None


def _apart(a: Any, b: Any, e: Any, kind: Any, near: list[list[Any]]) -> str:
    """Whether b lies further from e than is allowed, a being stock's; near: those of `moved`."""
    odd = ~a.isfinite() | ~b.isfinite()
    if odd.any():
        apart = odd & ~((a == b) | (a.isnan() & b.isnan()))
        if apart.any():
            return f"NaN or inf: stock {a[apart][:3].tolist()}, ours {b[apart][:3].tolist()}"
    e = torch.where(e.isfinite(), e, a)
    far = torch.where(odd, 0, (b - e).abs())
    err = torch.where(odd, 0, (a - e).abs())
    e = torch.where(odd, 0, e)
    last = torch.ldexp(torch.full_like(e, kind.eps), torch.frexp(e)[1] - 1).clamp_min(kind.tiny * kind.eps)
    wrong = far > 2 * err + 2 * last
    if not wrong.any():
        return ""
    bound = 2 * err + 2 * last
    if near:
        moves = torch.stack([(r - e).nan_to_num(0, 0, 0) for _, _, r in near])
        size = e.abs() + moves.square().mean(0).sqrt() / kind.eps
        rate = (err / size).nan_to_num(0, 0, 0).max()
        for s, m, _ in near:
            rate = torch.maximum(rate, ((s - m).abs() / size).nan_to_num(0, 0, 0).max())
        bound = torch.maximum(bound, (2 * rate + 2 * kind.eps) * size)
        wrong = far > bound
        if not wrong.any():
            return ""
    at = int((far / bound).argmax())
    b, e, a, far, bound = (t.flatten()[at] for t in (b, e, a, far, bound))
    return (
        f"{b:.9g} for {e:.9g}, stock {a:.9g}: off by {far:.3g}, allowed {bound:.3g}; "
        f"{int(wrong.sum())} of {wrong.numel()} wrong"
    )


def _floats(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.is_floating_point()


def _off_by(t: Any, eps: float, g: Any) -> Any:
    """The tensor, each number up or down by a rounding."""
    signs = torch.randint(0, 2, t.shape, generator=g, dtype=t.dtype) * 2 - 1
    return t * (1 + eps * signs)


class _Rounding(TorchDispatchMode):
    """Every new result of an operator is off by a rounding; what is changed in place or shares memory not.

    Operators are taken apart into their formulas, so that what is computed inside is off by one too.
    """

    def __init__(self, eps: float, seed: int) -> None:
        super().__init__()
        self._eps, self._generator = eps, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = not func._schema.is_mutable and all(r.alias_info is None for r in func._schema.returns)
        if plain and func in decomposition_table:
            try:
                with self:
                    return decomposition_table[func](*args, **kwargs)
            except Exception:  # a formula that does not know this case
                pass
        made = func(*args, **kwargs)
        if not plain:
            return made
        return tree_map(lambda t: _off_by(t, self._eps, self._generator) if _strided(t) else t, made)


def _strided(t: Any) -> bool:
    return _floats(t) and t.layout is torch.strided


@dataclass
class Sweep:
    """Runs samples and counts. seed, share: with these, one sample in `share` is drawn. most: at
    most so many samples of an operator in a dtype, drawn too; 0: all."""

    frontend: Any
    share: int = 1
    seed: int = 0
    most: int = 0
    samples: int = 0  # that reach an operator of ours
    taken: int = 0  # of these, with a call that ours took
    errors: int = 0  # of these, that stock refuses
    unsteady: int = 0  # not of these: differing ones that differ in two runs of stock as well
    differing: list[str] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.set_warn_always(True)  # a warning that is given once would tell the runs apart
        self._off: Any = None
        self._random = random.Random(self.seed)
        self._seen = 0
        self._entries: dict[str, list[Any]] = {}

    def op(self, name: str, info: Any, dtype: Any, gradients: bool = True) -> None:
        """Every sample of an operator in a dtype."""
        if dtype not in info.supported_dtypes("cpu"):
            return
        grads = gradients and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        for i, sample in self._samples(lambda: info.sample_inputs("cpu", dtype, requires_grad=grads)):
            for what, call, inputs in self._calls(info, sample, dtype, grads):
                self._one(f"{name} {str(dtype).removeprefix('torch.')} sample {i} {what}", call, inputs)
        if dtype is torch.float32 and info.error_inputs_func is not None:
            for i, wrong in self._samples(lambda: info.error_inputs("cpu")):
                s = wrong.sample_input
                self._one(f"{name} error {i}", lambda held: info(held[0], *held[1], **held[2]),
                          (s.input, s.args, s.kwargs))  # fmt: skip

    def _samples(self, make: Callable[[], Any]) -> Iterator[tuple[int, Any]]:
        torch.manual_seed(self.seed)
        with hooks.using(False):
            found = iter(make())
        kept: list[tuple[int, Any]] = []
        for i in itertools.count():
            try:
                with hooks.using(False):
                    sample = next(found)
            except Exception:  # no more; or one that cannot be made here, which says nothing of ours
                break
            if self.share == 1 or self._random.randrange(self.share) == 0:
                kept.append((i, sample))
        if self.most and len(kept) > self.most:
            kept = sorted(self._random.sample(kept, self.most), key=lambda k: k[0])
        yield from kept

    def _calls(self, info: Any, sample: Any, dtype: Any, grads: bool) -> Iterator[tuple[str, Call, Any]]:
        given = (sample.input, sample.args, sample.kwargs)
        process = sample.output_process_fn_grad

        def plain(held: Any) -> Any:
            return info(held[0], *held[1], **held[2])

        def gradient(held: Any) -> Any:
            made = process(plain(held))
            outs = [t for t in tree_flatten(made)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            inputs = [t for t in tree_flatten(held)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            g = torch.Generator().manual_seed(1)
            weights = [self._moved(torch.randn(t.shape, generator=g).to(dtype).to(t.dtype)) for t in outs]
            return [made, torch.autograd.grad(outs, inputs, weights, allow_unused=True)] if outs else [made]

        yield "gradient" if grads else "plain", gradient if grads else plain, given
        bare = tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, given)
        if grads:
            yield "plain", plain, bare
        try:
            spread = sample.noncontiguous()
            yield "strided", gradient if grads else plain, (spread.input, spread.args, spread.kwargs)
        except Exception:  # a sample that has no such form
            pass
        if info.inplace_variant is not None:

            def in_place(held: Any) -> Any:
                return [info.inplace_variant(held[0], *held[1], **held[2]), held[0]]

            yield "in place", in_place, bare
        if info.supports_out and isinstance(sample.input, torch.Tensor):

            def out(held: Any) -> Any:
                with hooks.using(False):
                    like = tree_map(torch.zeros_like, plain(held))
                info(held[0], *held[1], **held[2], out=like)
                return like

            yield "out", out, bare

    def _one(self, what: str, call: Call, given: Any) -> None:
        def run() -> Outcome:
            return self._after(call, tree_map(_held, given))

        names, stock = self._stock(run)
        if not names:
            return
        before = self._calls_taken(names)
        ours = run()
        taken = self._calls_taken(names) > before
        found = differ(stock, ours, stock) if stock.error else ""
        if not stock.error:
            exact = self._stock(lambda: self._after(call, tree_map(_double, given)))[1]
            found = differ(stock, ours, exact)
            if found and not ours.error:
                found = differ(stock, ours, exact, self._about(call, given, stock))
        if found and differ(stock, self._stock(run)[1], stock):
            self.unsteady += 1  # stock does not repeat itself (memory that nobody wrote)
            return
        self.samples += 1
        self.taken += taken
        self.errors += bool(stock.error)
        for n in names:
            self.operators[n] = self.operators.get(n, 0) + 1
        if found:
            who = ", ".join(sorted(names)) + ("" if taken else "; none taken")
            self.differing.append(f"{what}: {found} ({who})")

    def _after(self, call: Call, held: Any) -> Outcome:
        """What a call gave, and of each tensor given to it what it holds then, or None if nothing changed."""
        before = [(t, t.detach().clone()) for t in tree_flatten(held)[0] if isinstance(t, torch.Tensor)]
        made = _run(lambda: call(held))
        if not made.error:
            made.results += [None if _same(t.detach(), was) else t.detach() for t, was in before]
        return made

    def _stock(self, run: Callable[[], Outcome]) -> tuple[set[str], Outcome]:
        """A run with stock's kernels, and which operators of ours it reached."""
        block = self.frontend.block
        for op in block.operators:
            block.set(op, "denied", 0)
            block.set(op, "on", DENIED)
        try:
            made = run()
        finally:
            for op in block.operators:
                block.set(op, "on", ON)
        return {op.name for op in block.operators if block.of(op, "denied")}, made

    def _about(self, call: Call, given: Any, stock: Outcome) -> list[tuple[Outcome, Outcome, Outcome]]:
        """Outcomes of inputs that are each off by a rounding, as `differ` takes them."""
        eps = max((_eps(t.dtype) for t in stock.results if _floats(t)), default=0.0)
        double = eps == _eps(torch.float64)

        def one(form: Callable[[Any], Any], eps: float, seed: int, rounding: bool = False) -> Outcome:
            self._off = eps, torch.Generator().manual_seed(seed)
            try:
                held = tree_map(lambda t: form(self._moved(_held(t))), given)
                with _Rounding(eps, seed) if rounding else contextlib.nullcontext():
                    return self._stock(lambda: self._after(call, held))[1]
            finally:
                self._off = None

        made = []
        for seed in range(RUNS):
            exact = one(_double, eps, seed)
            rounded = one(_double, eps, seed, rounding=True)
            if rounded.error:  # what cannot be run in a dispatch mode
                rounded = exact
            if double:
                wide = _eps(torch.float32)
                exact = one(_double, wide, seed)
                made.append((self._scaled(one(_single, wide, seed), exact), exact, rounded))
            else:
                made.append((one(_held, eps, seed), exact, rounded))
        return made

    def _scaled(self, single: Outcome, exact: Outcome) -> Outcome:
        """Of float64 there is no better result to measure by but stock's own: its error in float32, in units
        of roundings, and half of it again because ours is measured from stock's."""
        if len(single.results) != len(exact.results):
            return exact
        unit = 1.5 * _eps(torch.float64) / _eps(torch.float32)
        results = [
            e.detach() + (s.detach().double() - e.detach()) * unit
            if _strided(e) and _strided(s) and e.dtype is torch.float64 and s.shape == e.shape
            else e
            for e, s in zip(exact.results, single.results)
        ]
        return Outcome(results)

    def _moved(self, t: Any) -> Any:
        """The tensor, or in `_about` one that is off by a rounding either way."""
        if self._off is None or not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        return _off_by(t.detach(), *self._off).requires_grad_(t.requires_grad)

    def _calls_taken(self, names: set[str]) -> int:
        """Calls of these operators that ours took up to now."""
        entries = list(self.frontend.block.entries.values())
        for e in entries[self._seen :]:
            self._entries.setdefault(e.op.name, []).append(e)
        self._seen = len(entries)
        return sum(e.calls for n in names for e in self._entries.get(n, ()) if e.taken)


def _same(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same, NaN being NaN."""
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _single(t: Any) -> Any:
    """The same values in float32."""
    if t is torch.float64:
        return torch.float32
    if not isinstance(t, torch.Tensor) or t.dtype is not torch.float64 or t.layout is not torch.strided:
        return _held(t)
    return t.detach().float().requires_grad_(t.requires_grad)


def _double(t: Any) -> Any:
    """The same values in float64."""
    if t is torch.float32 or t is torch.bfloat16 or t is torch.float16:
        return torch.float64
    if not isinstance(t, torch.Tensor) or not t.is_floating_point() or t.layout is not torch.strided:
        return _held(t)
    return t.detach().double().requires_grad_(t.requires_grad)
