"""What operations mean, nothing of how: importing this package registers every one of them."""

from vlug.ops import conv, loss, matmul, norm, pointwise, pool, reduction, softmax

__all__ = ["conv", "loss", "matmul", "norm", "pointwise", "pool", "reduction", "softmax"]
