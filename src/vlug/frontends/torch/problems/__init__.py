"""From a call of PyTorch to a graph: one function an operator, in the operators' order.

Each gives the graph, where its tensors lie among the arguments, and the results with exactly the sizes,
strides and dtypes that stock's kernel gives them; or raises Pass with the reason why stock serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.errors import BadInput
from vlug.frontends.torch.keys import Pass
from vlug.frontends.torch.operators import Operator
from vlug.frontends.torch.problems import (
    activation,
    conv,
    embedding,
    loss,
    matmul,
    norm,
    optim,
    pointwise,
    pool,
    reduction,
    resample,
    sample_norm,
    softmax,
)
from vlug.frontends.torch.problems.base import Maker, Problem

__all__ = ["PROBLEMS", "Problem", "problem"]

PROBLEMS: dict[str, Maker] = {
    **activation.PROBLEMS,
    **conv.PROBLEMS,
    **embedding.PROBLEMS,
    **loss.PROBLEMS,
    **matmul.PROBLEMS,
    **norm.PROBLEMS,
    **optim.PROBLEMS,
    **pointwise.PROBLEMS,
    **pool.PROBLEMS,
    **reduction.PROBLEMS,
    **resample.PROBLEMS,
    **sample_norm.PROBLEMS,
    **softmax.PROBLEMS,
}


def problem(op: Operator, arguments: Sequence[Any]) -> Problem:
    """The problem of a call. Raises Pass with the reason where stock serves."""
    p = Problem()
    try:
        PROBLEMS[op.name](p, *arguments)
    except BadInput as e:  # stock says what is wrong, in its own words
        raise Pass(f"left to stock to judge: {e}") from None
    return p
