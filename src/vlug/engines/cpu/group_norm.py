"""Group norm and instance norm engine: planes and channels-last rows of any strides, forward and backward."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from vlug.engines.base import Engine, EngineConfig, Program
from vlug.engines.cpu.nest import Axis, channel_parts, folded, native, no_kernels, parts
from vlug.engines.cpu.pointwise import past_caches
from vlug.engines.cpu.row_norm import mixed_f64
from vlug.graph import Graph
from vlug.ops.base import need
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = ["GroupNormEngine"]

#: Tensors by letter, in the order of their kernels; full-sized ones, a channel's, statistics.
_FORWARD, _BACKWARD = "xsbymv", "gxsmvdpq"
_FULL, _CHANNEL, _STAT = "xygd", "sbpq", "mv"
#: Fewer groups than FEW, of more than LARGE elements, are worked on in pieces: their channels, each in pieces
#: of PIECE elements or more, so many that there are some MANY.
FEW, LARGE, PIECE, MANY = 16, 65536, 16384, 64
#: Bytes of a block of rows, and the fewest and most rows.
BLOCK, LEAST, MOST = 256 << 10, 64, 1024


class GroupNormEngine(Engine):
    """groupnorm, instancenorm and their backward."""

    name: ClassVar[str] = "cpu.group_norm"

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        if why := no_kernels(device):
            return why
        op = graph.nodes[0].op.name
        if len(graph) != 1 or op.removesuffix("_backward") not in ("groupnorm", "instancenorm"):
            return f"takes one group norm or instance norm, not {'; '.join(n.op.name for n in graph)}"
        return mixed_f64(graph)

    def share(self, graph: Graph, device: CpuDevice) -> float:
        return 0.9

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> Program:
        from vlug.engines.cpu.kernels import group_norm as kernels

        node = graph.nodes[0]
        op: Any = node.op
        ins, outs = list(graph.ins(node)), list(graph.outs(node))
        backward = op.name.endswith("_backward")
        tensors = dict(zip(_BACKWARD if backward else _FORWARD, (*ins, *outs)))
        (x,) = need([tensors["x"]])
        N, C = x.dim[:2]
        G = op.groups if op.name.startswith("group") else C
        D, spatial = C // max(G, 1), math.prod(x.dim[2:])
        full = {n: t for n in _FULL if (t := tensors.get(n)) is not None}
        space = folded(
            [Axis(d, tuple(t.stride[2 + i] for t in full.values())) for i, d in enumerate(x.dim[2:])]
        )
        rows = C > 1 and all(t.stride[1] == 1 for t in full.values())
        rows = rows and not any(all(s == 1 for s in a.strides) for a in space)
        values: dict[str, Any] = {"N": N, "G": G, "D": D, "C": C, "size": D * spatial}
        values |= {"count": float(max(D * spatial, 1)), "spatial": float(max(spatial, 1))}
        values["channels"] = float(max(D, 1))
        last = Axis(1, (1,) * len(full))
        if not rows and space:
            last = space.pop(max(range(len(space)), key=lambda i: (sum(s == 1 for s in space[i].strides), i)))
        for j, a in enumerate(space):
            values[f"j{j}"] = a.extent
            values |= {f"{n}_j{j}": s for n, s in zip(full, a.strides)}
        for at, (n, t) in enumerate(full.items()):
            values |= {f"{n}_n": t.stride[0], f"{n}_c": t.stride[1], f"{n}_g": t.stride[1] * D}
            values[f"{n}_l"] = last.strides[at]
        channel = {n: t.stride[0] for n in _CHANNEL if (t := tensors.get(n)) is not None}
        values |= {f"{n}_c": s for n, s in channel.items()}
        for n in _STAT:
            if (t := tensors.get(n)) is not None:
                values |= {f"{n}_n": t.stride[0], f"{n}_g": t.stride[1]}
        unit = [n for n, s in zip(full, last.strides) if s == 1 or last.extent == 1]
        unit += [n for n, s in channel.items() if s == 1 or C <= 1]
        nbytes = sum(t.nbytes for t in full.values())
        out: Tensor | None = outs[0]
        constants: dict[str, Any] = {
            "kinds": tuple(None if t is None else t.dtype.name for t in tensors.values()),
            "inner": len(space),
            "unit": "".join(unit),
            "stream": past_caches(out) and (rows or ("d" if backward else "y") in unit),
        }
        values |= channel_parts(C, nbytes)
        if rows:
            RB = min(max(BLOCK // max(C * x.dtype.itemsize, 1), LEAST), MOST)
            values |= {"count_j": spatial, "RB": RB, "blocks": -(-spatial // RB)}
            count = N * values["blocks"]
        else:
            pieces = N * G < FEW and N * D * G * spatial > LARGE
            PB = max(-(-last.extent * N * C // MANY), PIECE)
            PB = -(-PB // 64) * 64
            values |= {"L": last.extent, "PB": PB, "pieces": -(-last.extent // PB)}
            count = N * C * values["pieces"] if pieces else N * G
            constants["pieces"] = pieces
        if not backward:
            values["eps"] = float(op.eps)
        values |= parts(count, nbytes)
        build = getattr(kernels, f"{'backward' if backward else 'forward'}_{'rows' if rows else 'planes'}")
        names = [None if t is None else t.name for t in tensors.values()]
        return native(build, device, names, values, **constants)
