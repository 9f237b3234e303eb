"""A native engine with a fault of choice: what the test harness must catch."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np

from vlug.engines.base import Engine, NativeProgram
from vlug.graph import Graph
from vlug.runtime.threads import Env

__all__ = ["Relu"]


class Relu(Engine):
    """relu of f32 vectors as a native program (a callback), with a fault."""

    name: ClassVar[str] = "fake"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def why_not(self, graph: Graph, device: Any) -> str | None:
        return None if [n.op.name for n in graph] == ["relu"] else "only relu"

    def compile(self, graph: Graph, config: Any, device: Any) -> NativeProgram:
        (x,), (y,) = graph.inputs, graph.outputs
        n, step = x.numel, x.stride[0]

        def run(tensors: int, args: int, workspace: int, env: int) -> int:
            source, target = (ctypes.c_void_p * 2).from_address(tensors)
            a = (ctypes.c_float * x.span).from_address(source)
            b = (ctypes.c_float * (y.span + 1)).from_address(target)
            threads = Env.from_address(env).threads
            if self.fault == "code":
                return 3
            for i in range(n):
                if self.fault == "unwritten" and i == n - 1:
                    continue
                at = i if self.fault == "stride" else i * step
                value = max(a[i * step], 0.0)
                if self.fault == "value" and i == n // 2:
                    value += 1.0
                if self.fault == "ulp" and i == n // 2:
                    value += abs(value) * 2.0**-20
                if self.fault == "threads" and threads == 2 and i == 0:
                    value = np.nextafter(np.float32(value), np.float32(9))
                b[at] = value
            if self.fault == "mask":  # a whole vector where only a part is wanted
                b[(n - 1) * step - 1] = 0.0
            if self.fault == "past":
                b[(n - 1) * step + 1] = 0.0
            if self.fault == "input":
                a[0] = 7.0
            if self.fault == "workspace":
                ctypes.c_float.from_address(workspace + 4096).value = 1.0
            return 0

        f = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(run)
        address = ctypes.cast(f, ctypes.c_void_p).value
        return NativeProgram(
            address, (x.name, y.name), (), 4096 if self.fault == "workspace" else 0, 0, (), f
        )
