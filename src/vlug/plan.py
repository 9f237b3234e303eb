"""ExecutionPlan: which engine runs which part of a graph, where the workspace lies, and why not otherwise.

Intermediates between parts lie in the plan's own memory (shared where their lives do not overlap), the
workspace of the part that runs behind them. `native` gives the words that `codegen/native` walks without
Python: its head has their layout.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from vlug import config, heuristics
from vlug.engines.base import Engine, EngineConfig, NativeProgram, Program
from vlug.errors import BadInput, DTypeError, NotSupported, ShapeError
from vlug.graph import Graph
from vlug.runtime import handle
from vlug.tensor import Tensor

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice
    from vlug.store import Store

__all__ = ["ExecutionPlan", "Rejected", "Step", "clear_plans", "plan"]

REFERENCE = "reference"
_PAGE = 4096
# A core's arithmetic and traffic a second, roughly, and the seconds that a second thread costs (it may have
# to be woken: 1 µs at best, measured, and milliseconds where something else runs on its core).
_CORE_FLOPS, _CORE_BYTES, _SHARING = 5e10, 2e10, 5e-6
_MANY = 1 << 30


@dataclass(frozen=True)
class Rejected:
    """An engine that was asked and does not serve: `line` is the part of the graph, `why` the reason."""

    engine: str
    line: str
    why: str


@dataclass(frozen=True)
class Step:
    """One part of a plan: a graph that one engine takes, its configuration and its program."""

    graph: Graph
    config: EngineConfig
    program: Program
    seconds: float

    @property
    def native(self) -> bool:
        return isinstance(self.program, NativeProgram)


@dataclass(frozen=True)
class _Layout:
    """Where intermediates lie (bytes from the base of the workspace) and what all steps need."""

    offset: Mapping[str, int]
    buffers: int  # bytes of intermediates
    fixed: int  # buffers and the largest shared workspace
    each: int  # the largest workspace of a part


class ExecutionPlan:
    """A graph made ready for a device. Immutable; may be executed by several threads at once.

    graph, device: what it was made for.        steps:    parts in order of execution.
    outer:         names of inputs and outputs, in the order in which `native` numbers them.
    rejected:      engines that were asked and do not serve, with their reasons.
    """

    def __init__(
        self, graph: Graph, device: CpuDevice, steps: Sequence[Step], rejected: Sequence[Rejected]
    ) -> None:
        self.graph = graph
        self.device = device
        self.steps = tuple(steps)
        self.rejected = tuple(rejected)
        self.outer = tuple(t.name for t in (*graph.inputs, *graph.outputs))
        self._written = frozenset(t.name for t in graph.outputs)
        self._maker = {n: node for node in graph for n in node.outputs if n is not None}
        self._layout = _lay_out(graph, self.steps)
        self._words: dict[tuple[str, ...], Any] = {}

    # --- what it is ---
    @property
    def config(self) -> EngineConfig:
        """The configuration, where one engine takes the whole graph (else that of the first step)."""
        return self.steps[0].config

    @property
    def engine(self) -> str:
        """Names of the engines, joined by + where there are several."""
        return "+".join(dict.fromkeys(s.config.engine for s in self.steps))

    @property
    def is_native(self) -> bool:
        """Whether every step is native code: only such a plan may run inside a framework."""
        return all(s.native for s in self.steps)

    @property
    def seconds(self) -> float:
        """Expected or measured time of a call."""
        return sum(s.seconds for s in self.steps)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the compiled objects."""
        return tuple(k for s in self.steps if isinstance(s.program, NativeProgram) for k in s.program.kernels)

    def workspace_size(self, threads: int) -> int:
        """Bytes of workspace that a call with `threads` threads uses; execution asks this very function."""
        if threads < 1:
            raise BadInput(f"threads: {threads} must be 1 or more")
        return self._layout.fixed + min(threads, self._threads) * self._layout.each

    @property
    def _threads(self) -> int:
        """At most so many threads serve: one, where sharing out takes longer than what there is to do."""
        cost = self.graph.cost
        return 1 if cost.flops / _CORE_FLOPS + cost.bytes / _CORE_BYTES < _SHARING else _MANY

    # --- native form ---
    def native(self, order: Sequence[str] | None = None) -> Any:
        """The plan as an int64 array for `codegen.native`; order: outer tensors' names, by default `outer`.

        The array must outlive every call made with it; the plan keeps it. Raises NotSupported if a step is
        not native code.
        """
        names = tuple(order) if order is not None else self.outer
        found = self._words.get(names)
        if found is None:
            found = self._words[names] = self._encode(names)
        return found

    def _encode(self, names: tuple[str, ...]) -> Any:
        from vlug.codegen import native

        missing = [n for n in self.outer if n not in names]
        if missing:
            raise BadInput(f"order: {', '.join(missing)} of the graph is not in it")
        index = {n: i for i, n in enumerate(names)}
        index |= {n: native.temporary(at) for n, at in self._layout.offset.items()}
        steps = []
        for step in self.steps:
            p = step.program
            if not isinstance(p, NativeProgram):
                raise NotSupported(f"{step.graph.line}: {step.config} is not native code")
            tensors = tuple(native.NULL_TENSOR if n is None else index[n] for n in p.operands)
            args = (ctypes.c_int64 * max(len(p.args), 1))(*p.args)
            steps.append(native.Step(p.address, args, tensors, p.shared_bytes, p.part_bytes))
        return native.plan_array(steps, self._layout.buffers, self._threads)

    # --- execution ---
    def execute(self, arrays: Mapping[str, Any], threads: int | None = None) -> None:
        """Run the plan. arrays: every input and output by name: NumPy arrays, anything that lends its memory
        (DLPack, array interface, buffer), or addresses (int: unchecked). Outputs are written in place.

        Raises BadInput, ShapeError or DTypeError (before any code runs) for an array that is missing,
        unknown, read-only though written, or whose dims, strides or dtype are not the graph's;
        ExecutionError if a kernel reports a failure.
        """
        held = self._check(arrays)
        with ExitStack() as stack:
            if threads is not None:
                stack.enter_context(config.THREADS.using(threads))
            if self.is_native:
                self._run_native(held)
            else:
                self._run_mixed(held)

    def run_checked(self, arrays: Mapping[str, handle.Array | NDArray[Any]]) -> None:
        """As `execute`, for arrays whose dims, strides, dtypes and memory the caller has already checked."""
        held = {n: handle.array(arrays[n]) for n in self.outer}
        if self.is_native:
            self._run_native(held)
        else:
            self._run_mixed(held)

    def _check(self, arrays: Mapping[str, Any]) -> dict[str, handle.Array]:
        written, known = self._written, frozenset(self.outer)
        unknown = [n for n in arrays if n not in known]
        if unknown:
            raise BadInput(f"{unknown[0]}: not a tensor of the graph; it has {', '.join(self.outer)}")
        held: dict[str, handle.Array] = {}
        for name in self.outer:
            if name not in arrays:
                raise BadInput(f"{name}: no array came for it; the graph has {', '.join(self.outer)}")
            held[name] = _array(arrays[name], self.graph.tensors[name], name in written)
        self._check_overlap(held)
        return held

    def _check_overlap(self, held: Mapping[str, handle.Array]) -> None:
        """Outputs may not share memory with anything else, what may be updated in place aside."""
        reach = sorted((a.pointer, a.pointer + self._bytes(n), n) for n, a in held.items() if a.size)
        near: list[tuple[int, int, str]] = []
        for start, end, name in reach:
            near = [r for r in near if r[1] > start]
            for other_start, _, other in near:
                for out, read in ((name, other), (other, name)):
                    if out not in self._written or (read in self._written and read < out):
                        continue
                    same = other_start == start and held[other].strides == held[name].strides
                    if not (same and self._in_place(read, out)):
                        raise BadInput(f"{out}: its memory overlaps that of {read}")
            near.append((start, end, name))

    def _in_place(self, other: str, out: str) -> bool:
        """Whether `out` may be written where `other` is read."""
        node = self._maker[out]
        port = node.op.outputs[node.outputs.index(out)].rstrip("?")
        if port.startswith("next_") and other in node.inputs:
            return node.op.port(node.inputs.index(other)) == port.removeprefix("next_")
        return len(self.graph) == 1 and node.op.name in _POINTWISE

    def _bytes(self, name: str) -> int:
        t = self.graph.tensors[name]
        return t.span * t.dtype.itemsize

    def _run_native(self, held: Mapping[str, handle.Array]) -> None:
        from vlug.codegen import native

        native.run(self.native(), [held[n].pointer for n in self.outer])

    def _run_mixed(self, held: Mapping[str, handle.Array]) -> None:
        """Step by step: at least one step is a program in Python, over NumPy arrays."""
        real = dict(held)
        for step in self.steps:
            names = [t.name for t in (*step.graph.inputs, *step.graph.outputs)]
            for n in names:
                if n not in real:
                    t = self.graph.tensors[n]
                    real[n] = handle.array(handle.empty(t.dim, t.dtype, t.stride), n)
            if isinstance(step.program, NativeProgram):
                ExecutionPlan(step.graph, self.device, [step], ())._run_native(real)
            else:
                step.program.run({n: real[n].numpy() for n in names})

    # --- explanation ---
    def explain(self, as_dict: bool = False) -> Any:
        """Why this plan: text for people, or a dict of plain values with `as_dict`."""
        roof = heuristics.roofline(self.device)
        steps = []
        for s in self.steps:
            cost = s.graph.cost
            ideal = roof.seconds(cost, s.graph)
            p = s.program
            steps.append(
                {
                    "line": s.graph.line,
                    "engine": s.config.engine,
                    "config": str(s.config),
                    "knobs": dict(s.config.knobs),
                    "native": s.native,
                    "kernels": list(p.kernels) if isinstance(p, NativeProgram) else [],
                    "flops": cost.flops,
                    "bytes": cost.bytes,
                    "roofline_seconds": ideal,
                    "expected_seconds": s.seconds,
                    "bound_by": roof.bound(cost, s.graph),
                }
            )
        data: dict[str, Any] = {
            "line": self.graph.line,
            "device": self.device.fingerprint,
            "engine": self.engine,
            "steps": steps,
            "split": len(steps) > 1,
            "workspace_fixed": self._layout.fixed,
            "workspace_per_thread": self._layout.each,
            "rejected": [{"engine": r.engine, "line": r.line, "why": r.why} for r in self.rejected],
        }
        return data if as_dict else _explain_text(data)


def _explain_text(d: dict[str, Any]) -> str:
    lines = [d["line"]]
    for i, s in enumerate(d["steps"]):
        head = f"step {i + 1}: " if d["split"] else ""
        lines.append(f"  {head}{s['config']}" + (f"   {s['line']}" if d["split"] else ""))
        lines.append(
            f"    {s['flops'] / 1e9:.4g} GFLOP, {s['bytes'] / 1e6:.4g} MB; roofline"
            f" {s['roofline_seconds'] * 1e3:.4g} ms ({s['bound_by']}),"
            f" expected {s['expected_seconds'] * 1e3:.4g} ms"
        )
        if s["kernels"]:
            lines.append(f"    kernels: {', '.join(s['kernels'])}")
    lines.append(f"  workspace: {d['workspace_fixed']} B + {d['workspace_per_thread']} B a thread")
    if d["rejected"]:
        lines.append("  not used:")
        lines += [
            f"    {r['engine']}: {r['why']}" + (f"   ({r['line']})" if d["split"] else "")
            for r in d["rejected"]
        ]
    return "\n".join(lines)


# --- making a plan ---
_plans: dict[tuple[Any, ...], ExecutionPlan] = {}
_lock = threading.RLock()
_MOST_PLANS = 4096


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # its holder may not exist in the child


os.register_at_fork(after_in_child=_after_fork)


def clear_plans() -> None:
    """Forget plans in memory (after the store's timings or the configuration changed)."""
    with _lock:
        _plans.clear()


def plan(
    graph: Graph | str,
    device: CpuDevice | None = None,
    *,
    prefer: EngineConfig | str | None = None,
    allow_reference: bool = True,
    store: Store | None = None,
    engines: Sequence[Engine] | None = None,
    threads: int | None = None,
) -> ExecutionPlan:
    """The plan of a graph (or a problem line) on a device; the same plan for the same question.

    device:          default: this machine's CPU.
    prefer:          an engine ("cpu.conv_direct") or a configuration ("cpu.conv_direct/mr=14") that must
                     take the whole graph.
    allow_reference: whether the reference engine (NumPy, slow) may serve where no other does; it warns.
    store:           measured timings that come before the cost model; default: the user's.
    engines:         what to choose from, in order of preference; default: all.
    threads:         for which the choice is made; default: the device's cores.

    Raises NotSupported with every engine's reason; BadInput if an output's strides overlap themselves.
    """
    if isinstance(graph, str):
        graph = Graph.parse(graph)
    if device is None:
        from vlug.runtime.device import host

        device = host()
    wanted = EngineConfig.parse(prefer) if isinstance(prefer, str) else prefer
    if store is None and engines is None:
        from vlug.store import default_store

        store = default_store()
    key = (
        graph.line,
        device.fingerprint,
        wanted,
        allow_reference,
        None if store is None else (store.identity, store.revision(graph.line)),
        None if engines is None else tuple(id(e) for e in engines),
        threads,
    )
    found = _plans.get(key)
    if found is not None:
        return found
    with _lock:
        found = _plans.get(key)
        if found is None:
            found = _make(graph, device, wanted, allow_reference, store, engines, threads)
            if len(_plans) >= _MOST_PLANS:
                _plans.pop(next(iter(_plans)))
            _plans[key] = found
    return found


def _make(
    graph: Graph,
    device: CpuDevice,
    wanted: EngineConfig | None,
    allow_reference: bool,
    store: Store | None,
    engines: Sequence[Engine] | None,
    threads: int | None,
) -> ExecutionPlan:
    if not graph.nodes:
        raise BadInput("graph: it holds no operation")
    for t in graph.outputs:
        if t.overlaps and t.numel:
            raise ShapeError(f"{t.name}: output strides {t.stride} let elements share memory")
    if engines is None:
        from vlug.engines import engines as all_engines

        engines = all_engines()
    fast = [e for e in engines if e.name != REFERENCE]
    slow = next((e for e in engines if e.name == REFERENCE), None)
    rejected: list[Rejected] = []
    if wanted is not None:
        step = _prefer(graph, device, wanted, engines)
        return ExecutionPlan(graph, device, [step], ())
    steps: list[Step] = []
    at = 0
    while at < len(graph):
        found, width = _largest(graph, at, device, fast, store, threads, rejected)
        if found is not None:
            step = found
        else:
            piece = graph if len(graph) == 1 else graph.subgraph([at])
            reasons = [(r.engine, r.why) for r in rejected if r.line == piece.line]
            if slow is None or not allow_reference:
                raise NotSupported(f"no fast engine takes: {piece.line}", reasons)
            why = slow.why_not(piece, device)
            if why is not None:
                raise NotSupported(f"no engine takes: {piece.line}", [*reasons, (slow.name, why)])
            step, width = _reference(piece, device, slow, reasons), 1
        steps.append(step)
        at += width
    return ExecutionPlan(graph, device, steps, rejected)


def _largest(
    graph: Graph,
    at: int,
    device: CpuDevice,
    engines: Sequence[Engine],
    store: Store | None,
    threads: int | None,
    rejected: list[Rejected],
) -> tuple[Step | None, int]:
    """The longest run of operations from `at` that an engine takes, and the best engine for it."""
    for end in range(len(graph), at, -1):
        whole = at == 0 and end == len(graph)
        piece = graph if whole else graph.subgraph(range(at, end))
        taking: list[Engine] = []
        refused: list[Rejected] = []
        for e in engines:
            why = e.why_not(piece, device)
            if why is None:
                taking.append(e)
            else:
                refused.append(Rejected(e.name, piece.line, why))
        if whole or taking or end == at + 1:
            rejected += refused
        if not taking:
            continue
        ranked = heuristics.rank(piece, device, taking, store, threads)
        for i, choice in enumerate(ranked):
            try:
                program = choice.engine.compile(piece, choice.config, device)
            except NotSupported as e:
                rejected.append(Rejected(choice.engine.name, piece.line, f"compile refused: {e}"))
                continue
            rejected += [
                Rejected(c.engine.name, piece.line, f"slower: {c.why} {c.seconds * 1e3:.4g} ms")
                for c in ranked[i + 1 :]
                if c.engine is not choice.engine
            ]
            return Step(piece, choice.config, program, choice.seconds), end - at
    return None, 0


def _prefer(graph: Graph, device: CpuDevice, wanted: EngineConfig, engines: Sequence[Engine]) -> Step:
    engine = next((e for e in engines if e.name == wanted.engine), None)
    if engine is None:
        raise BadInput(
            f"engine: {wanted.engine!r} is unknown; there are {', '.join(e.name for e in engines)}"
        )
    why = engine.why_not(graph, device)
    if why is not None:
        raise NotSupported(f"{wanted.engine} does not take: {graph.line}", [(engine.name, why)])
    allowed, given = engine.knobs(graph, device), dict(wanted.knobs)
    for knob, value in given.items():
        if knob not in allowed:
            raise BadInput(f"{engine.name}: knob {knob!r} is unknown; it has {', '.join(allowed) or 'none'}")
        if value not in allowed[knob]:
            raise BadInput(f"{engine.name}: {knob}={value} is not one of {allowed[knob]}")
    config = EngineConfig(engine.name, tuple((k, given.get(k, v[0])) for k, v in allowed.items()))
    seconds = heuristics.predict(graph, device, engine)
    return Step(graph, config, engine.compile(graph, config, device), seconds)


def _reference(piece: Graph, device: CpuDevice, engine: Engine, reasons: Sequence[tuple[str, str]]) -> Step:
    """The slow engine. The engine itself warns once that it is used, and why nothing faster serves.

    Graphs with an empty tensor stay silent: there is nothing to be slow about.
    """
    config = engine.default(piece, device)
    if all(t.numel for t in piece.tensors.values()):
        heuristics.warn_slow(piece, reasons)
    return Step(
        piece, config, engine.compile(piece, config, device), heuristics.predict(piece, device, engine)
    )


# --- workspace ---
def _round(n: int, to: int) -> int:
    return -(-n // to) * to


def _lay_out(graph: Graph, steps: Sequence[Step]) -> _Layout:
    """First fit by life: an intermediate lives from the step that makes it to the last that reads it."""
    outside = {t.name for t in (*graph.inputs, *graph.outputs)}
    life: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        for t in (*step.graph.inputs, *step.graph.outputs):
            if t.name not in outside:
                life.setdefault(t.name, [i, i])[1] = i
    placed: list[tuple[int, int, int, int]] = []
    offset: dict[str, int] = {}
    buffers = 0
    for name, (first, last) in life.items():
        t = graph.tensors[name]
        size = _round(max(t.span * t.dtype.itemsize, 1), 64)
        at = 0
        for start, end, a, b in sorted(p for p in placed):
            if a <= last and first <= b and at < end and start < at + size:
                at = end
        offset[name] = at
        placed.append((at, at + size, first, last))
        buffers = max(buffers, at + size)
    buffers = _round(buffers, _PAGE)
    native = [s.program for s in steps if isinstance(s.program, NativeProgram)]
    shared = max((p.shared_bytes for p in native), default=0)
    each = max((p.part_bytes for p in native), default=0)
    return _Layout(offset, buffers, buffers + shared, each)


# --- arrays ---
_POINTWISE = frozenset(
    {"relu", "relu_backward", "add", "mul", "bias", "batchnorm_inference", "dropout", "dropout_backward"}
)


def _array(given: Any, t: Tensor, written: bool) -> handle.Array:
    """The argument as checked memory; an address is taken as it comes."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given == 0 and t.numel:
            raise BadInput(f"{t.name}: its address is null")
        return handle.Array(given, t.dim, t.stride, t.dtype, False, None)
    a = handle.array(given, t.name, written)
    if a.dtype != t.dtype:
        raise DTypeError(f"{t.name}: dtype is {a.dtype}, the graph has {t.dtype}")
    if a.shape != t.dim:
        raise ShapeError(f"{t.name}: dims are {a.shape}, the graph has {t.dim}")
    if not t.has_strides(a.strides):
        raise ShapeError(f"{t.name}: strides are {a.strides}, the graph has {t.stride}")
    return a
