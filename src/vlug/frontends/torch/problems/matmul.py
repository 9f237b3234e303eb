"""Calls of PyTorch as graphs: products of matrices, and the linear layer."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.problems.base import (
    Maker,
    Problem,
    alike,
)
from vlug.tensor import Tensor

__all__ = ["PROBLEMS"]


def _matrix(p: Problem, name: str, a: Arg) -> tuple[Tensor, bool]:
    """A matrix operand, row-major if it or its transpose is, and whether it is transposed."""
    t = a.tensor(name)
    if not t.is_contiguous and a.stride[0] == 1 and a.stride[1] >= a.dim[0]:
        turned = Tensor((a.dim[1], a.dim[0]), (a.stride[1], a.stride[0]), a.dtype, name)
        return p.input(name, a, tensor=turned.normalised.renamed(name)), True
    return p.input(name, a), False


def _product(p: Problem, a: Any, b: Any, name: str) -> Tensor:
    for m in (a, b):
        if m.rank != 2:
            raise Pass(f"{m.rank} dimensions, not 2")
    alike(a, b)
    if a.dim[1] != b.dim[0]:
        raise Pass("left to stock to judge: inner sizes differ")
    (ta, turn_a), (tb, turn_b) = _matrix(p, "a", a), _matrix(p, "b", b)
    return p.graph.matmul(ta, tb, transpose_a=turn_a, transpose_b=turn_b, names=[name])


def _mm(p: Problem, a: Any, b: Any) -> None:
    p.output(_product(p, a, b, "c"))


def _addmm(p: Problem, bias: Any, a: Any, b: Any, beta: Any, alpha: Any) -> None:
    if beta != 1 or alpha != 1:
        raise Pass(f"beta {beta}, alpha {alpha}")
    c = _product(p, a, b, "c")
    alike(a, bias)
    if bias.dim == (c.dim[1],) and (bias.stride == (1,) or bias.dim == (1,)):
        y = p.graph.bias(c, p.input("bias", bias), axis=1, names=["y"])
    elif bias.dim == c.dim and bias.is_contiguous:
        y = p.graph.add(c, p.input("bias", bias), names=["y"])
    else:
        raise Pass("a bias that is spread out")
    p.output(y)


PROBLEMS: dict[str, Maker] = {
    "mm": _mm,
    "addmm": _addmm,
}
