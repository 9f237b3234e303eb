"""Random problem lines of every operation, from a seed: small, valid, odd sizes more often than round."""

from vlug.testing_lines import (
    activation,
    arithmetic,
    conv,
    ctc,
    dropout,
    embedding,
    grid,
    layout,
    loss,
    matmul,
    norm,
    optim,
    pointwise,
    pointwise_loss,
    pool,
    reduction,
    resample,
    softmax,
)
from vlug.testing_lines.base import Line

__all__ = ["LINES"]

#: Operation name → a random problem line.
LINES: dict[str, Line] = {
    **activation.LINES,
    **arithmetic.LINES,
    **conv.LINES,
    **ctc.LINES,
    **dropout.LINES,
    **embedding.LINES,
    **grid.LINES,
    **layout.LINES,
    **loss.LINES,
    **matmul.LINES,
    **norm.LINES,
    **optim.LINES,
    **pointwise.LINES,
    **pointwise_loss.LINES,
    **pool.LINES,
    **reduction.LINES,
    **resample.LINES,
    **softmax.LINES,
}
