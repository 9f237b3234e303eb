"""PyTorch's own samples of its operators (OpInfo), on against off: what reaches an operator that vlug takes.

A sample is an operator's inputs and attributes as PyTorch's developers chose them. Each is run with stock's
kernels and with ours forced: as a function, on non-contiguous inputs, in place, with `out`, with gradients.
Strides, dtypes, errors and warnings must be the same; of values, ours may lie twice as far from the result in
float64 as stock's does there, or at inputs that are off by a rounding; or as far as that result moves then.
Whatever reaches no operator of ours (all are denied in stock's run, and count it) is left out.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from vlug.frontends import hooks
from vlug.frontends.torch.control import DENIED, ON

__all__ = ["DTYPES", "Sweep", "op_infos"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Call = Callable[[Any], Any]


def op_infos() -> dict[str, Any]:
    """PyTorch's operators by name and variant. Importing them takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}


def _held(t: Any) -> Any:
    """A tensor's copy in memory of its own with the same strides and offset."""
    if not isinstance(t, torch.Tensor):
        return t
    if t.layout is not torch.strided or t.is_conj() or t.is_neg() or type(t) is not torch.Tensor:
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


def _ulp(dtype: Any) -> float:
    return float(torch.finfo(dtype).eps)


def differ(
    stock: Outcome, ours: Outcome, exact: Outcome, moved: Sequence[tuple[Outcome, Outcome]] = ()
) -> str:
    """What is wrong with ours, or nothing.

    moved: stock's and the exact outcomes of inputs that are off by a rounding.
    """
    if (stock.error, stock.warnings) != (ours.error, ours.warnings):
        return f"stock: {stock.error or stock.warnings}, ours: {ours.error or ours.warnings}"
    if len(stock.results) != len(ours.results):
        return f"{len(stock.results)} results of stock, {len(ours.results)} of ours"
    known = exact.results if not exact.error and len(exact.results) == len(stock.results) else None
    for i, (a, b) in enumerate(zip(stock.results, ours.results)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b and a != b and not (a != a and b != b):
                return f"result {i}: {a} of stock, {b} of ours"
            continue
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        form = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad, t.storage_offset()) for t in (a, b)]
        if form[0] != form[1]:
            return f"result {i}: {form[0]} of stock, {form[1]} of ours"
        a, b = a.detach(), b.detach()
        e = known[i].detach() if known and isinstance(known[i], torch.Tensor) else a
        e = e if e.layout is torch.strided else e.to_dense()
        if a.is_complex():
            a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
            e = torch.view_as_real(e.resolve_conj()) if e.is_complex() else a
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return f"result {i}: values differ"
            continue
        if e.shape != a.shape or not e.is_floating_point():
            e = a
        near = [(s.results[i], m.results[i]) for s, m in moved if not s.error + m.error]
        near = [(s, m) for s, m in near if s.layout is m.layout is torch.strided]
        slack = max([0.0, *(_slack(e, s, m) for s, m in near)])
        found = _apart(a.double(), b.double(), e.double(), _ulp(a.dtype), slack)
        if found:
            return f"result {i}: {found}"
    return ""


def _slack(e: Any, a: Any, m: Any) -> float:
    """How far stock's (a) and the exact result (m) of moved inputs lie from each other, and m from e."""
    if not a.shape == m.shape == e.shape or not e.numel():
        return 0.0
    e, a, m = (t.detach().double() for t in (e, a, m))
    return max(float((x - y).nan_to_num(0, 0, 0).abs().max()) for x, y in ((a, m), (m, e)))


def _apart(a: Any, b: Any, e: Any, ulp: float, slack: float) -> str:
    """Whether b lies further from e than twice as far as a, or than twice the slack; roundings aside."""
    odd = ~a.isfinite() | ~b.isfinite()
    if odd.any():
        apart = odd & ~((a == b) | (a.isnan() & b.isnan()))
        if apart.any():
            return f"NaN or inf: stock {a[apart][:3].tolist()}, ours {b[apart][:3].tolist()}"
    fine = ~odd & e.isfinite()
    if not fine.any():
        return ""
    a, b, e = a[fine], b[fine], e[fine]
    far = (b - e).abs()
    # gradients are sums of products with numbers of order one: of those, two roundings as they are computed
    order_one = min(2.4e-7, 2 * ulp)
    bound = 2 * max(float((a - e).abs().max()), slack) + ulp * (2 * e.abs() + e.abs().max()) + order_one
    wrong = far > bound
    if not wrong.any():
        return ""
    at = int((far - bound).argmax())
    return f"{b[at]:.9g} for {e[at]:.9g}, stock {a[at]:.9g}; {int(wrong.sum())} of {wrong.numel()} wrong"


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
            weights = [
                self._moved(torch.randn(t.shape, generator=g).to(dtype).to(t.dtype)) for t in outs
            ]
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
            held = tree_map(_held, given)
            return _run(lambda: call(held))

        names, stock = self._stock(run)
        if not names:
            return
        before = self._calls_taken(names)
        ours = run()
        taken = self._calls_taken(names) > before
        found = differ(stock, ours, stock) if stock.error else ""
        if not stock.error:
            exact = self._stock(lambda: _run(lambda: call(tree_map(_double, given))))[1]
            found = differ(stock, ours, exact)
            if found and not ours.error:
                found = differ(stock, ours, exact, self._about(call, given, stock))
        if found and differ(stock, self._stock(run)[1], stock):
            return  # stock does not repeat itself (memory that nobody wrote)
        self.samples += 1
        self.taken += taken
        self.errors += bool(stock.error)
        for n in names:
            self.operators[n] = self.operators.get(n, 0) + 1
        if found:
            who = ", ".join(sorted(names)) + ("" if taken else "; none taken")
            self.differing.append(f"{what}: {found} ({who})")

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

    def _about(self, call: Call, given: Any, stock: Outcome) -> list[tuple[Outcome, Outcome]]:
        """Stock's outcome and that in float64 of inputs that are each off by a rounding."""
        ulps = [_ulp(t.dtype) for t in stock.results if isinstance(t, torch.Tensor) and t.is_floating_point()]
        made = []
        for seed in range(8):
            pair = []
            for form in (_held, _double):
                self._off = max(ulps, default=0.0), torch.Generator().manual_seed(seed)
                try:
                    held = tree_map(lambda t: form(self._moved(_held(t))), given)  # noqa: B023
                    pair.append(self._stock(lambda: _run(lambda: call(held)))[1])  # noqa: B023
                finally:
                    self._off = None
            made.append((pair[0], pair[1]))
        if ulps and max(ulps) == _ulp(torch.float64):
            made.append((self._as_single(call, given, stock), stock))
        return made

    def _as_single(self, call: Call, given: Any, stock: Outcome) -> Outcome:
        """Of float64 there is no better result to measure by but stock's own: its error in float32, in units
        of roundings, and half of it again because ours is measured from stock's."""
        found = self._stock(lambda: _run(lambda: call(tree_map(_single, given))))[1]
        if len(found.results) != len(stock.results):
            return stock
        unit = 1.5 * _ulp(torch.float64) / _ulp(torch.float32)
        results = [
            e.detach() + (s.detach().double() - e.detach()) * unit
            if isinstance(e, torch.Tensor) and isinstance(s, torch.Tensor) and e.dtype is torch.float64
            and s.shape == e.shape and s.is_floating_point() else e
            for e, s in zip(stock.results, found.results)
        ]  # fmt: skip
        return Outcome(results)

    def _moved(self, t: Any) -> Any:
        """The tensor, or in `_about` one that is off by a rounding either way."""
        if self._off is None or not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        ulp, g = self._off
        signs = torch.randint(0, 2, t.shape, generator=g, dtype=t.dtype) * 2 - 1
        return (t.detach() * (1 + ulp * signs)).requires_grad_(t.requires_grad)

    def _calls_taken(self, names: set[str]) -> int:
        """Calls of these operators that ours took up to now."""
        entries = list(self.frontend.block.entries.values())
        for e in entries[self._seen :]:
            self._entries.setdefault(e.op.name, []).append(e)
        self._seen = len(entries)
        return sum(e.calls for n in names for e in self._entries.get(n, ()) if e.taken)


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
