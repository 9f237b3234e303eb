"""Operators with arguments of every kind that adapters read, for the canary alone: no operation serves them.

Their problems only say which results come back; the canary's stand-in computes them with stock's kernels.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from vlug.dtypes import BOOL, F32, F64
from vlug.frontends.torch.control import IS_WRITTEN, Output
from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.operators import Operator
from vlug.frontends.torch.problems import PROBLEMS
from vlug.frontends.torch.problems.base import Problem
from vlug.tensor import Tensor, contiguous_strides

PROBES = (
    Operator("gelu", "Ta", 1, "probe"),
    Operator("gelu_", "Ma", 0, "probe"),
    Operator("gelu_backward", "TTa", 1, "probe"),
    Operator("clamp", "TFF", 1, "probe"),
    Operator("cat", "Ni", 1, "probe"),
    Operator("upsample_nearest2d", "TIDD", 1, "probe"),
    Operator("upsample_bilinear2d_backward", "TIIbDD", 1, "probe"),
    Operator("grid_sampler_2d_backward", "TTTiibC", 2, "probe"),
    Operator("native_layer_norm", "TIOOd", 3, "probe", sym=True),
    Operator("native_group_norm", "TOOsssid", 3, "probe", sym=True),
    Operator("native_dropout", "Tdo", 2, "probe"),
    Operator("clone", "TL", 1, "probe"),
    Operator("elu_backward", "TSSSbT", 1, "probe"),
    Operator("add_.Tensor", "MTS", 0, "probe"),
    Operator("_batch_norm_with_update", "TOOMMvd", 4, "probe"),
    Operator("smooth_l1_loss", "TTid", 1, "probe"),
    Operator("_fused_adam_", "EEEEEEvddddbbOO", 0, "probe"),
    Operator("_fused_sgd_", "EEEddvdbbbOO", 0, "probe"),
    Operator("log_sigmoid_forward", "T", 2, "probe"),
    Operator("_ctc_loss", "TTIIib", 2, "probe"),
)  # fmt: skip


def _input(p: Problem, *args: Any, written: bool = False) -> None:
    for a in args:
        if isinstance(a, Arg):
            if a.number == 7:
                raise Pass("float64")
            p.order[f"t{a.place}"] = a.place | (IS_WRITTEN if written else 0)


def _out(p: Problem, dim: Any, dtype: Any = F32, stride: Any = None) -> None:
    t = Tensor(tuple(dim), tuple(stride or contiguous_strides(dim)), dtype, f"y{len(p.results)}")
    p.output(p.graph.like(t.name, t))


def _same(count: int = 1, like: int = 0) -> Any:
    def make(p: Problem, *args: Any) -> None:
        _input(p, *args)
        for _ in range(count):
            _out(p, args[like].dim)

    return make


def _in_place(p: Problem, *args: Any) -> None:
    _input(p, *args[1:])
    _input(p, args[0], written=True)


def _cat(p: Problem, tensors: Any, axis: int) -> None:
    _input(p, *tensors)
    dim = list(tensors[0].dim)
    dim[axis] = sum(t.dim[axis] for t in tensors)
    _out(p, dim)


def _upsample(p: Problem, x: Any, size: Any, *_: Any) -> None:
    _input(p, x)
    _out(p, (*x.dim[:2], *size))


def _upsample_backward(p: Problem, dy: Any, size: Any, dim: Any, *_: Any) -> None:
    _input(p, dy)
    _out(p, dim)


def _grid_backward(p: Problem, dy: Any, x: Any, grid: Any, *rest: Any) -> None:
    _input(p, dy, x, grid)
    mask = rest[-1]
    if mask[0]:
        _out(p, x.dim)
    else:
        p.none()
    _out(p, grid.dim)


def _layer_norm(p: Problem, x: Any, size: Any, scale: Any, bias: Any, eps: float) -> None:
    _input(p, x, scale, bias)
    _out(p, x.dim)
    for _ in range(2):
        _out(p, (*x.dim[: x.rank - len(size)], *[1] * len(size)))


def _group_norm(p: Problem, x: Any, scale: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
                ) -> None:  # fmt: skip
    if (n, c, n * c * hw) != (*x.dim[:2], x.dim[0] * x.dim[1] * x.dim[2] * x.dim[3]):
        raise ValueError("sizes that are not x's")
    _input(p, x, scale, bias)
    _out(p, x.dim)
    for _ in range(2):
        _out(p, (n, groups))


def _dropout(p: Problem, x: Any, share: float, train: Any) -> None:
    if train or train is None:
        raise Pass("random")
    _input(p, x)
    _out(p, x.dim)
    _out(p, x.dim, BOOL)


def _clone(p: Problem, x: Any, memory_format: Any) -> None:
    _input(p, x)
    _out(p, x.dim, stride=x.stride if memory_format in (None, 1) else None)


def _norm_update(p: Problem, x: Any, scale: Any, bias: Any, mean: Any, var: Any, momentum: Any, eps: float
                 ) -> None:  # fmt: skip
    _input(p, x, scale, bias)
    _input(p, mean, var, written=True)
    p.scalar("momentum", momentum, F64)
    _out(p, x.dim)
    _out(p, (x.dim[1],))
    _out(p, (x.dim[1],))
    p.results.append(Output((0,), (1,), 0))  # a reserve, of bytes


def _loss(p: Problem, x: Any, target: Any, reduction: int, beta: float) -> None:
    _input(p, x, target)
    _out(p, x.dim if reduction == 0 else ())


def _adam(p: Problem, *args: Any) -> None:
    *tensors, lr = args[:7]
    _input(p, *tensors, written=True)
    p.scalar("lr", lr, F64)
    if args[-1] is not None or args[-2] is not None:
        raise Pass("scaled")


def _sgd(p: Problem, *args: Any) -> None:
    _input(p, *args[:3], written=True)
    p.scalar("lr", args[5], F64)


def _ctc(p: Problem, x: Any, targets: Any, lengths: Any, target_lengths: Any, *rest: Any) -> None:
    _input(p, x, targets)
    longest = max(target_lengths)
    _out(p, (x.dim[1],))
    _out(p, (x.dim[1], max(lengths), 2 * longest + 1))


PROBE_PROBLEMS: dict[str, Any] = {
    "gelu": _same(), "gelu_": _in_place, "gelu_backward": _same(like=1), "clamp": _same(), "cat": _cat,
    "upsample_nearest2d": _upsample, "upsample_bilinear2d_backward": _upsample_backward,
    "grid_sampler_2d_backward": _grid_backward, "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm, "native_dropout": _dropout, "clone": _clone, "elu_backward": _same(),
    "add_.Tensor": _in_place, "_batch_norm_with_update": _norm_update, "smooth_l1_loss": _loss,
    "_fused_adam_": _adam, "_fused_sgd_": _sgd, "log_sigmoid_forward": _same(2), "_ctc_loss": _ctc,
}  # fmt: skip


def cases() -> list[Any]:
    """Calls that reach every argument, as C++ and as the interpreter calls, taken (f32) and passed (f64)."""
    import torch

    return [
        (f"{name}, {dtype}", call)
        for dtype in (torch.float32, torch.float64)
        for name, call in _cases(dtype)
    ]


def _cases(dtype: Any) -> list[Any]:
    import torch

    A: Any = torch.ops.aten
    g = torch.Generator().manual_seed(1)

    def r(*size: int) -> Any:
        return torch.randn(*size, generator=g).to(dtype)

    x, y, c = r(2, 4, 6, 5), r(2, 4, 6, 5), r(4)
    last = x.contiguous(memory_format=torch.channels_last)
    grid, dy = r(2, 3, 3, 2).tanh(), r(2, 4, 3, 3)
    logits = r(7, 2, 5).log_softmax(2)
    targets = torch.tensor([[1, 2, 2], [3, 4, 0]])
    scale, bias, mean, var = c, r(4), r(4), r(4).abs()

    def back(mask: Any) -> Any:
        return A.grid_sampler_2d_backward(dy, x, grid, 0, 1, True, mask)

    def norm(momentum: float) -> Any:
        held = [mean.clone(), var.clone()]
        f, t = A._batch_norm_with_update, x.detach().requires_grad_()  # with a gradient: called from C++
        return [*f(t, scale, bias, *held, momentum, 0.5), *f(x, None, bias, *held, momentum, 0.25), *held]

    def adam(call: Any, lr: float, amsgrad: bool, *scales: Any) -> Any:
        lists = [[x[i] * (k + 1) for i in range(2)] for k in range(2)]
        lists += [[x[i].square() * k for i in range(2)] for k in range(3 if amsgrad else 2)]
        lists += [[]] * (not amsgrad) + [[torch.tensor(3.0), torch.tensor(4.0)]]
        call(*lists, lr=lr, beta1=0.5, beta2=0.75, weight_decay=0.125, eps=0.01, amsgrad=amsgrad,
             maximize=False, grad_scale=None, found_inf=None)  # fmt: skip
        return [t for held in lists for t in held]

    def sgd(call: Any, lr: float, momentum: bool) -> Any:
        lists = [[x[i] * (k + 1) for i in range(2)] for k in range(3 if momentum else 2)]
        lists += [[]] * (not momentum)
        call(*lists, weight_decay=0.5, momentum=0.25 * momentum, lr=lr, dampening=0.125 * momentum,
             nesterov=False, maximize=True, is_first_step=False)  # fmt: skip
        return [t for held in lists for t in held]

    def mismatched(call: Any) -> Any:
        return call([x, y], [x], [x, x], [y, y], [], [torch.tensor(1.0)] * 2, lr=0.5, beta1=0.5, beta2=0.75,
                    weight_decay=0.0, eps=0.01, amsgrad=False, maximize=False)  # fmt: skip

    return [
        ("gelu", lambda: [
            f(x, approximate=a) for f in (torch._C._nn.gelu, A.gelu) for a in ("none", "tanh")
        ]),
        ("gelu, wrong", lambda: torch._C._nn.gelu(x, approximate="a name of more than a few characters")),
        ("gelu_", lambda: [f(x.clone(), approximate="tanh") for f in (torch._C._nn.gelu_, A.gelu_)]),
        ("gelu_backward", lambda: [A.gelu_backward(y, x, approximate=a) for a in ("none", "tanh")]),
        ("clamp", lambda: [
            f(x, *b) for f in (torch.clamp, A.clamp) for b in ((0.25, None), (None, -0.5), (-1, 1), (0, 0.5))
        ]),
        ("cat", lambda: [f(t, i) for f in (torch.cat, A.cat) for t, i in (([x, y], 1), ([x, y, x, y], 0))]),
        ("cat of 30", lambda: torch.cat([x[:1]] * 30, 0)),
        ("cat of 60", lambda: torch.cat([x[:1]] * 60, 0)),
        ("upsample", lambda: [
            f(x, [9, 7], *s) for f in (torch._C._nn.upsample_nearest2d, A.upsample_nearest2d)
            for s in ((None, None), (1.25, None), (None, 1.6))
        ]),
        ("upsample_backward", lambda: [
            A.upsample_bilinear2d_backward(y, [6, 5], [2, 4, 3, 3], b, *s)
            for b in (True, False) for s in ((None, None), (1.25, None), (None, 1.6))
        ]),
        ("grid_sampler_backward", lambda: [back(m) for m in ([True, True], [False, True])]),
        ("grid_sampler_backward, C++", lambda: _grad(
            lambda *t: torch.nn.functional.grid_sample(*t, align_corners=True), x, grid)),
        ("layer_norm", lambda: [
            f(x, n, *p, 0.5) for f in (torch.native_layer_norm, A.native_layer_norm)
            for n, p in (([5], (x[0, 0, 0], None)), ([6, 5], (None, x[0, 0])), ([6, 5], (x[0, 0], x[0, 1])))
        ]),
        ("group_norm", lambda: [
            f(x, *p, 2, 4, 30, 2, 0.5) for f in (torch.native_group_norm, A.native_group_norm)
            for p in ((c, None), (None, c), (scale, bias))
        ]),
        ("dropout", lambda: [
            f(x, *a) for f in (torch.native_dropout, A.native_dropout) for a in ((0.5, False), (1.0, None))
        ]),
        ("clone", lambda: [
            f(last, memory_format=m) for f in (torch.clone, A.clone) for m in (None, torch.contiguous_format)
        ]),
        ("elu_backward", lambda: [
            A.elu_backward(y, 0.25, 1.5, 1, True, x), A.elu_backward(y, 2, 1, 0.5, False, x),
            _grad(lambda t: torch.nn.functional.elu(t, 0.75), x),
        ]),
        ("add_", lambda: [
            f(x.clone(), y, alpha=a) for f in (torch.Tensor.add_, A.add_) for a in (1, 0.5, 2)
        ]),
        ("norm_update", lambda: [norm(m) for m in (0.25, 0.5, 0.75)]),
        ("smooth_l1", lambda: [
            f(x, y, m, b) for f in (torch._C._nn.smooth_l1_loss, A.smooth_l1_loss) for m in (0, 1, 2)
            for b in (0.5, 2.0)
        ]),
        ("adam", lambda: [
            v for f in (torch._fused_adam_, A._fused_adam_) for lr in (0.5, 0.25, 0.125)
            for a in (False, True) for v in adam(f, lr, a)
        ]),
        ("adam, mismatched", lambda: mismatched(torch._fused_adam_)),
        ("adam, mismatched, boxed", lambda: mismatched(A._fused_adam_)),
        ("sgd", lambda: [
            v for f in (torch._fused_sgd_, A._fused_sgd_) for lr in (0.5, 0.25) for m in (False, True)
            for v in sgd(f, lr, m)
        ]),
        ("log_sigmoid", lambda: [f(x)[0] for f in (torch._C._nn.log_sigmoid, A.log_sigmoid_forward)]),
        ("ctc", lambda: [f(logits, targets, [7, 6], [3, 2], 0, z)[0] for f in (torch._ctc_loss, A._ctc_loss)
                         for z in (False, True)]),
    ]  # fmt: skip


def _grad(call: Any, *tensors: Any) -> Any:
    import torch

    inputs = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(call(*inputs).square().sum(), inputs)


def verdict(name: str = "", kinds: str = "") -> str:
    """What the canary says of the probes, with other kinds for one of them; "" if they agree with stock."""
    from vlug.frontends.torch import canary, loader

    PROBLEMS.update(PROBE_PROBLEMS)
    probes = [dataclasses.replace(o, kinds=kinds) if o.name == name else o for o in PROBES]
    return canary.verdict(loader.compile_object(probes), probes, cases())


def main() -> None:
    """Print a verdict for the probes as they are, then for each wrong NAME=KINDS of the arguments; each in a
    child of its own, for the adapters stay in PyTorch's dispatcher and some wrong ones crash."""
    import torch

    torch.set_num_threads(1)
    for argument in ("=", *sys.argv[1:]):
        child = os.fork()
        if not child:
            print(argument, verdict(*argument.split("=")) or "agrees", flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(argument, "crashed", flush=True)


if __name__ == "__main__":
    main()
