"""What operations mean, nothing of how: importing this package registers every one of them."""

from vlug.ops import (
    activation,
    arithmetic,
    conv,
    dropout,
    identity,
    logic,
    loss,
    matmul,
    norm,
    optim,
    pointwise,
    pointwise_loss,
    pool,
    reduction,
    row_norm,
    softmax,
)
from vlug.ops.base import OPERATIONS

__all__ = [
    "OPERATIONS",
    "activation",
    "arithmetic",
    "conv",
    "dropout",
    "identity",
    "logic",
    "loss",
    "matmul",
    "norm",
    "optim",
    "pointwise",
    "pointwise_loss",
    "pool",
    "reduction",
    "row_norm",
    "softmax",
]
