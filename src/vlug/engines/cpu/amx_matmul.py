"""Engine cpu.bf16_matmul: matrix products in bf16 by AMX's tiles or AVX512-BF16's dot products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.amx_base import LEADING, Problem, choose, compiled_program, no_products, share
from vlug.engines.cpu.conv_base import Axis, Conv, ConvGraph
from vlug.engines.cpu.matmul import Problem as Sizes
from vlug.engines.cpu.matmul import _parse as parse

if TYPE_CHECKING:
    from vlug.graph import Graph
    from vlug.runtime.device import CpuDevice

__all__ = ["PairMatmul"]


class PairMatmul(Engine):
    """c = a · b in bf16, alone or with a bias along m or n and a ReLU behind it; fp32 sums.

    Denormal inputs and sums count as zero, as the processor's bf16 products have it.
    """

    name = "cpu.bf16_matmul"
    notes = frozenset({"deterministic", "denormals_are_zero"})

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        found = no_products(device) or _problem(graph)
        return found if isinstance(found, str) else None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        p = _problem(graph)
        return 0.0 if isinstance(p, str) else share(p, device)

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: elements of the sum at once; band, k_chunk: of a unit; pixels_first: loop order."""
        p = _problem(graph)
        if isinstance(p, str):
            return {}
        d = choose(p, device)
        more = {"c_block": (128, 512), "band": (64, 128, 256), "images": (1,), "k_chunk": (64, 128, 512),
                "pixels_first": (0, 1)}
        return {name: (d[name], *(v for v in values if v != d[name])) for name, values in more.items()}

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        p = _problem(graph)
        if isinstance(p, str):
            raise ValueError(f"{self.name}: {p}")
        return compiled_program(p, dict(config.knobs), device)


def _problem(graph: Graph) -> Problem | str:
    """The product as a convolution of single pixels: m for pixels, n for outputs; or, where only b's rows lie
    dense, n for pixels and m for outputs."""
    f = parse(graph)
    if isinstance(f, str):
        return f
    for t in (f.a, f.b, f.c, f.bias):
        if t is not None and t.dtype.name != "bf16":
            return f"{t.name} is {t.dtype}: this engine takes bf16"
    if f.c.overlaps:
        return f"elements of {f.c.name} share memory"
    s = Sizes.of(f)
    if len(s.lead) > LEADING:
        return f"more than {LEADING} leading dimensions that do not lie evenly"
    (am, ak), (bk, bn), (cm, cn) = s.a, s.b, s.c
    if cn != 1 and s.N > 1:
        return f"neither rows nor columns of {f.c.name} are next to each other in memory"
    a, b = (f.a, f.b) if s.operands[0] == f.a.name else (f.b, f.a)
    rows = s.K <= 1 or ak == 1 or bn != 1 or s.N <= 1
    (P, O), src, w, dst, lead, pair = (
        ((s.M, s.N), (am, ak), (bn, bk), (cm, 1), s.lead, (a, b)) if rows else
        ((s.N, s.M), (bn, bk), (am, ak), (1, cm), tuple((n, y, x, z) for n, x, y, z in s.lead), (b, a)))
    axis = Axis.of("fprop", P, P, 1, 0, 1, 1)
    C = s.K
    if C == 0:  # an empty sum: one channel without taps
        C, axis = 1, Axis(0, P, 1, 1, ((),))
    one = Axis.of("fprop", 1, 1, 1, 0, 1, 1)
    c = Conv(1, 1, C, O, axis, one, (0, src[1], src[0], 0), (0, dst[1], dst[0], 0),
             (w[0], w[1], 0, 0, 0), s.bias_step, "bf16")
    bias = "" if not s.bias else "o" if (s.bias == "n") == rows else "p"
    g = ConvGraph(f.op, "fprop", pair[0], pair[1], f.c, f.bias, f.relu)
    return Problem(g, c, rows, True, lead, bias)
