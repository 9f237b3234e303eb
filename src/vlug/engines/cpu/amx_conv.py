"""Engine cpu.bf16_conv: convolutions in bf16 by AMX's tiles or AVX512-BF16's dot products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlug.engines.base import Engine, EngineConfig, NativeProgram
from vlug.engines.cpu.amx_base import Problem, choose, compiled_program, no_products, share
from vlug.engines.cpu.conv_base import parse

if TYPE_CHECKING:
    from vlug.graph import Graph
    from vlug.runtime.device import CpuDevice

__all__ = ["PairConv"]


class PairConv(Engine):
    """2-D convolution in bf16, fprop (with bias and ReLU) and dgrad, channels first or last; fp32 sums.

    Denormal inputs and sums count as zero, as the processor's bf16 products have it.
    """

    name = "cpu.bf16_conv"
    notes = frozenset({"deterministic", "denormals_are_zero"})

    def why_not(self, graph: Graph, device: CpuDevice) -> str | None:
        found = no_products(device) or _problem(graph)
        return found if isinstance(found, str) else None

    def share(self, graph: Graph, device: CpuDevice) -> float:
        p = _problem(graph)
        return 0.0 if isinstance(p, str) else share(p, device)

    def knobs(self, graph: Graph, device: CpuDevice) -> dict[str, tuple[int, ...]]:
        """c_block: channels at once; band, images, k_chunk: of a unit; pixels_first: loop order."""
        p = _problem(graph)
        if isinstance(p, str):
            return {}
        d = choose(p, device)
        more = {
            "c_block": (32, 64, 128, 512), "band": (32, 128, 256) if p.flat else (4, 7, 14, 28),
            "images": (1,) if p.flat else (1, 2, 4), "k_chunk": (64, 128, 512), "pixels_first": (0, 1),
        }  # fmt: skip
        return {name: (d[name], *(v for v in values if v != d[name])) for name, values in more.items()}

    def compile(self, graph: Graph, config: EngineConfig, device: CpuDevice) -> NativeProgram:
        p = _problem(graph)
        if isinstance(p, str):
            raise ValueError(f"{self.name}: {p}")
        return compiled_program(p, dict(config.knobs), device)


def _problem(graph: Graph) -> Problem | str:
    g = parse(graph)
    if isinstance(g, str):
        return g
    if g.src.dtype.name != "bf16":
        return f"{g.src.name} is {g.src.dtype}: this engine takes bf16"
    return Problem.of_conv(g)
