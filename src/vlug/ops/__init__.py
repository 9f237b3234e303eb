"""What operations mean, nothing of how: importing this package registers every one of them."""

from vlug.ops import (
    conv,
    dropout,
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
    "conv",
    "dropout",
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
