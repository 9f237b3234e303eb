"""PyTorch's own operators for problems: what is timed as stock and, hooked, as ours."""

from __future__ import annotations

from vlug.bench.peers import (
    activation,
    conv,
    loss,
    matmul,
    norm,
    optim,
    pointwise,
    pool,
    reduction,
    resample,
    softmax,
)
from vlug.bench.peers.base import DTYPES, Maker, Peer, make
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["DTYPES", "Peer", "peer"]

MAKERS: dict[str, Maker] = {
    **activation.MAKERS,
    **conv.MAKERS,
    **loss.MAKERS,
    **matmul.MAKERS,
    **norm.MAKERS,
    **optim.MAKERS,
    **pointwise.MAKERS,
    **pool.MAKERS,
    **reduction.MAKERS,
    **resample.MAKERS,
    **softmax.MAKERS,
}


def peer(graph: Graph) -> Peer:
    """PyTorch's operator for a graph of one operation, or of a convolution or product with its bias, its
    tensors filled; NotSupported if there is none."""
    names = [n.op.name for n in graph]
    node, after = graph.nodes[0] if names else None, graph.nodes[1:]
    biased = names[1:] == ["bias"] and names[0] in ("conv_fprop", "matmul") and _follows(graph)
    if node is None or (after and not biased) or names[0] not in MAKERS:
        raise NotSupported(f"PyTorch has no one operator of its own here for: {'; '.join(names)}")
    inputs = [*node.inputs, *(n.inputs[1] for n in after)]
    ports = [None if n is None else make(graph.tensors[n], i) for i, n in enumerate(inputs)]
    tensors = {n: t for n, t in zip(inputs, ports) if n is not None and t is not None}
    call, results, before = MAKERS[node.op.name](graph, node.op, ports)
    made = [*graph.nodes[-1].outputs, *[None] * len(results)]
    wanted = tuple("" if i is None else made[i] or "" for i in results)
    return Peer(call, tensors, wanted, before or (lambda: None))


def _follows(g: Graph) -> bool:
    """Whether the second operation is a bias as PyTorch's own operator adds it to the first's result."""
    first, second = g.nodes
    y = g.tensors[first.outputs[0] or ""]
    axis = second.op.bind((y, None)).axis  # type: ignore[attr-defined]
    own = axis == 1 if first.op.name == "conv_fprop" else y.rank == 2 and axis == 1
    return own and second.inputs[0] == first.outputs[0] and [t.name for t in g.outputs] == [second.outputs[0]]
