"""What graphs of PyTorch's calls are made with: a problem, checks of arguments, results as stock's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlug.dtypes import F32, I64, DType
from vlug.frontends.torch.control import IS_LIST, IS_OUTPUT, IS_SCALAR, IS_WRITTEN, Output
from vlug.frontends.torch.keys import Arg, Pass, Varying, VaryingList, torch_dtype
from vlug.graph import Graph
from vlug.tensor import Tensor, channels_last_strides, contiguous_strides

#: Makes the problem of a call of its arguments.
Maker = Callable[..., None]

__all__ = [
    "Maker",
    "Problem",
    "alike",
    "axis_of",
    "check_rows",
    "count",
    "formatted",
    "in_memory_of",
    "infer",
    "need_four",
    "same_memory",
    "two",
    "vectors",
]


@dataclass
class Problem:
    """A call as a graph. order: the graph's outer tensors by name and where each lies (an argument's place
    among the tensors, IS_WRITTEN with it; or IS_OUTPUT and the number of a result). results: what is
    allocated, None for an undefined tensor."""

    graph: Graph = field(default_factory=Graph)
    order: dict[str, int] = field(default_factory=dict)
    results: list[Output | None] = field(default_factory=list)

    def input(self, name: str, arg: Arg, written: bool = False, tensor: Tensor | None = None) -> Tensor:
        """An argument as an input of the graph."""
        self.order[name] = arg.place | (IS_WRITTEN if written else 0)
        return self.graph.like(name, tensor or arg.tensor(name))

    def scalar(self, name: str, arg: Varying, dtype: DType = F32) -> Tensor:
        """A number that comes with each call (kind v), as an operand of no dimensions: float32 or float64."""
        self.order[name] = IS_SCALAR | 2 * arg.place | (1 if dtype is F32 else 0)
        return self.graph.like(name, Tensor((), (), dtype, name))

    def numbers(self, name: str, arg: VaryingList) -> Tensor:
        """Integers that come with each call (kind l), as an operand of one dimension."""
        self.order[name] = IS_SCALAR | IS_LIST | 2 * arg.place
        return self.graph.like(name, Tensor((arg.length,), (1,), I64, name))

    def changed(self, t: Tensor, arg: Arg) -> None:
        """A tensor of the graph that is written over an argument, which may be an input too."""
        self.order[t.name] = arg.place | IS_WRITTEN

    def output(self, t: Tensor) -> None:
        """A tensor of the graph as the next result."""
        self.order[t.name] = IS_OUTPUT | len(self.results)
        self.results.append(Output(t.dim, t.stride, torch_dtype(t.dtype)))

    def none(self) -> None:
        """An undefined tensor as the next result."""
        self.results.append(None)


def need_four(*args: Arg | None) -> None:
    """Four-dimensional, one float dtype, nothing empty."""
    given = [a for a in args if a is not None]
    for a in given:
        if a.rank != 4:
            raise Pass(f"{a.rank} dimensions, not 4")
    alike(*given)


def alike(*args: Arg) -> None:
    first = args[0]
    for a in args:
        if not a.dtype.is_float:
            raise Pass(f"dtype {a.dtype.long_name}")
        if a.number != first.number:
            raise Pass("dtypes differ")
        if 0 in a.dim:
            raise Pass("a dimension of size 0")


def vectors(n: int, *args: Arg | None) -> None:
    for a in args:
        if a is not None and (a.dim != (n,) or (a.stride != (1,) and n > 1)):
            raise Pass("a parameter that is not one contiguous value a channel")


def two(values: Sequence[int] | None, default: Sequence[int] = ()) -> tuple[int, int]:
    v = tuple(values or default)
    if len(v) == 1:
        v *= 2
    if len(v) != 2:
        raise Pass(f"{len(v)} spatial dimensions, not 2")
    return v[0], v[1]


def formatted(name: str, dim: Sequence[int], dtype: Any, channels_last: bool) -> Tensor:
    """A result in one of PyTorch's two memory formats."""
    dim = tuple(dim)
    return Tensor(dim, channels_last_strides(dim) if channels_last else contiguous_strides(dim), dtype, name)


def same_memory(name: str, x: Arg) -> Tensor:
    """A pointwise result: the strides of a dense input."""
    if not x.is_dense:
        raise Pass("strides with gaps or overlaps")
    if x.is_contiguous:
        stride = contiguous_strides(x.dim)
    elif x.is_channels_last:
        stride = channels_last_strides(x.dim)
    else:
        stride = x.stride
    return Tensor(x.dim, stride, x.dtype, name)


def infer(g: Graph, name: str, *inputs: Tensor, **attributes: Any) -> Sequence[Tensor]:
    """Outputs of an operation, without adding it: on a graph of its own."""
    trial = Graph()
    made = trial.call(name, *[trial.like(t.name, t) for t in inputs], **attributes)
    return made if isinstance(made, tuple) else (made,)


def count(dim: Sequence[int]) -> int:
    n = 1
    for d in dim:
        n *= d
    return n


def in_memory_of(x: Arg) -> Tensor:
    """The strides of size-1 dimensions mean nothing: those of the result, so that engines see one layout."""
    return same_memory("x", x)


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Pass(f"left to stock to judge: dimension {axis} of {rank}")
    return axis % rank


def check_rows(*args: Arg) -> None:
    for a in args:
        if a.rank == 0:
            raise Pass("no dimensions")
        if not a.is_contiguous:
            raise Pass("strides that are not contiguous")
