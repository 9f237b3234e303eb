"""All engines, in order of preference: a new engine is one file and one line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlug.engines.base import Engine

__all__ = ["engine", "engines"]

# "module:class", the first preferred among those expected to be equally fast. Strings, so that nothing is
# imported (LLVM least of all) before a plan is made. The reference engine stays last.
ORDER: tuple[str, ...] = (
    "cpu.amx_conv:PairConv",
    "cpu.amx_matmul:PairMatmul",
    "cpu.depthwise:DepthwiseEngine",
    "cpu.conv_pointwise:ConvPointwise",
    "cpu.winograd:Winograd",
    "cpu.conv_nchw:ConvNCHW",
    "cpu.conv_nhwc:ConvNHWC",
    "cpu.conv_wgrad:ConvWgrad",
    "cpu.matmul:Matmul",
    "cpu.norm:BatchnormEngine",
    "cpu.row_norm:RowNormEngine",
    "cpu.group_norm:GroupNormEngine",
    "cpu.pool:PoolEngine",
    "cpu.axis:AxisEngine",
    "cpu.layout:LayoutEngine",
    "cpu.grid:GridEngine",
    "cpu.softmax:SoftmaxEngine",
    "cpu.loss:CrossEntropyEngine",
    "cpu.pointwise_loss:PointwiseLossEngine",
    "cpu.nll:NllEngine",
    "cpu.ctc:CtcEngine",
    "cpu.embedding:EmbeddingEngine",
    "cpu.dropout:DropoutEngine",
    "cpu.optim:OptimEngine",
    "cpu.pointwise:PointwiseEngine",
    "cpu.reduction:ReductionEngine",
    "cpu.reduction:ReductionBackwardEngine",
    "reference:Reference",
)


@cache
def engines() -> tuple[Engine, ...]:
    """An instance of each engine, in order of preference."""
    found = []
    for entry in ORDER:
        module, _, name = entry.partition(":")
        found.append(getattr(import_module(f"vlug.engines.{module}"), name)())
    return tuple(found)


def engine(name: str) -> Engine:
    """The engine called `name`; KeyError if there is none."""
    for e in engines():
        if e.name == name:
            return e
    raise KeyError(name)
