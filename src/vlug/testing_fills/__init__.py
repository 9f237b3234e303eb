"""Values of a problem's inputs: small integers, real numbers, edges; inputs that belong together do.

Batch norm's statistics are those of x, softmax's y is a softmax, a max-pool index lies in its window, classes
are in range. An operation says so in FITS of a module here, and which inputs the edge fill reaches in EDGES.
"""

from __future__ import annotations

import numpy as np

from vlug.graph import Graph
from vlug.testing_fills import (
    conv,
    ctc,
    dropout,
    embedding,
    grid,
    loss,
    norm,
    optim,
    pointwise,
    pointwise_loss,
    pool,
    reduction,
    rows,
)
from vlug.testing_fills.base import Array, Fit, Inputs, held, numbers, strew

__all__ = ["FILLS", "fill"]

FILLS = ("exact", "real", "edge")

FITS: dict[str, Fit] = {
    **grid.FITS,
    **ctc.FITS,
    **dropout.FITS,
    **embedding.FITS,
    **loss.FITS,
    **norm.FITS,
    **optim.FITS,
    **pointwise_loss.FITS,
    **pointwise.FITS,
    **pool.FITS,
    **reduction.FITS,
    **rows.FITS,
}
#: Inputs that the edge fill strews with inf and NaN, where it is not all of them.
EDGES: dict[str, tuple[str, ...]] = {
    **grid.EDGES,
    **conv.EDGES,
    **ctc.EDGES,
    **dropout.EDGES,
    **loss.EDGES,
    **norm.EDGES,
    **pointwise_loss.EDGES,
    **reduction.EDGES,
    **optim.EDGES,
    **rows.EDGES,
}


def fill(graph: Graph, kind: str = "real", seed: int = 0) -> dict[str, Array]:
    """Logical values of a graph's inputs: float64 that the tensor's dtype holds exactly, int64 for indices.

    exact: small integers, hardly a zero among them, so that sums are exact in fp32 and no term hides.
    real:  normal. edge: normal with inf, -inf, NaN, -0 and denormals strewn in the main input.
    """
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for t in graph.inputs:
        out[t.name] = numbers(t, kind, rng) if t.dtype.kind == "f" else np.zeros(t.dim, np.int64)
    for node in graph:
        fit = FITS.get(node.op.name)
        if fit is not None:
            ports = (p.rstrip("?") for p in node.op.inputs)
            fit(Inputs(graph, node.op, kind, dict(zip(ports, node.inputs)), out, rng))
    if kind == "edge":
        for name in _edge_inputs(graph):
            strew(out[name], rng)
    return {t.name: held(out[t.name], t.dtype) if t.dtype.kind == "f" else out[t.name] for t in graph.inputs}


def _edge_inputs(graph: Graph) -> list[str]:
    first = graph.nodes[0]
    wanted = EDGES.get(first.op.name)
    named = [(p.rstrip("?"), n) for p, n in zip(first.op.inputs, first.inputs) if n is not None]
    return [n for p, n in named if graph.tensors[n].dtype.kind == "f" and (wanted is None or p in wanted)]
