"""What tests, bench and `vlug run` share: fills, derived variants, guarded memory, the check of an engine.

    check("conv_fprop x=2x3x8x8 w=4x3x3x3 pad=1", "cpu.conv_nchw", fill="exact", threads=2)

runs a problem line through an engine and raises Mismatch, naming the line, if a result is wrong, an element
was not written, an input or the gap between elements was, or the result changes with the thread count.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlug import config
from vlug.dtypes import BF16, F16, F32, F64, DType, dtype
from vlug.engines.base import Engine, EngineConfig, NativeProgram, Program
from vlug.engines.reference import evaluate
from vlug.errors import DTypeError, ExecutionError, VlugError
from vlug.graph import Graph
from vlug.tensor import Tensor, channels_last_strides, contiguous_strides
from vlug.testing_fills import FILLS, fill
from vlug.testing_fills.base import held
from vlug.testing_plain import is_double, plain

if TYPE_CHECKING:
    from vlug.runtime.device import CpuDevice

__all__ = [
    "FILLS",
    "VARIANTS",
    "Case",
    "Guarded",
    "Mismatch",
    "allocate",
    "check",
    "compare",
    "derive",
    "fill",
    "of_dtype",
    "problem_lines",
    "run_program",
    "store",
    "tolerance",
    "variants",
]

Array = NDArray[Any]
#: Notes of engines whose sums of integers are not exact: they get real numbers and a tolerance instead.
INEXACT = frozenset({"winograd"})
#: Notes of engines whose processor takes a denormal input for zero: they get zeros in the place of denormals.
NO_DENORMALS = frozenset({"denormals_are_zero"})


class Mismatch(VlugError, AssertionError):
    """An engine's result is not what the operation's definition gives; the message holds the problem line."""


# --- variants of a problem ---
def derive(
    graph: Graph, inputs: Callable[[Tensor], Tensor], outputs: Callable[[Tensor], Tensor] | None = None
) -> Graph:
    """The same operations over other tensors: `inputs` maps each input, `outputs` each result's layout."""
    g = Graph()
    new = {t.name: g.like(t.name, inputs(t)) for t in graph.inputs}
    handed = {t.name for t in graph.outputs}
    for node in graph:
        ins = tuple(None if n is None else new[n] for n in node.inputs)
        inferred = node.op.infer(*ins)
        likes = [outputs(t) if outputs and n in handed else None for t, n in zip(inferred, node.outputs)]
        made = g.append(node.op, ins, node.outputs, likes)
        new.update({t.name: t for t in made})
    for t in graph.outputs:
        g.output(g.tensors[t.name])
    return g


def _strided(t: Tensor, stride: Sequence[int]) -> Tensor:
    return replace(t, stride=tuple(stride))


def _nhwc(t: Tensor) -> Tensor:
    return _strided(t, channels_last_strides(t.dim))


def _nhwc_data(t: Tensor) -> Tensor:
    """Channels last for images, row-major for weights: what frameworks mix."""
    return t if t.name in ("w", "dw") else _nhwc(t)


def _padded(t: Tensor) -> Tensor:
    """Row-major with a gap after every row, plane and image."""
    room = [d + 3 for d in t.dim]
    return _strided(t, contiguous_strides(room))


def _spaced(t: Tensor) -> Tensor:
    """Every second element: no dimension has stride 1."""
    return _strided(t, [2 * s for s in contiguous_strides(t.dim)])


def _reversed(t: Tensor) -> Tensor:
    """The first dimension runs fastest."""
    return _strided(t, contiguous_strides(t.dim[::-1])[::-1])


def _nhwc_padded(t: Tensor) -> Tensor:
    if t.rank < 3:
        return _padded(t)
    return _strided(t, channels_last_strides([t.dim[0], t.dim[1] + 5, *(d + 1 for d in t.dim[2:])]))


def _repeated(t: Tensor) -> Tensor:
    """The first dimension repeats one slice (stride 0)."""
    return _strided(t, (0, *t.stride[1:])) if t.rank else t


def _odd_ones(t: Tensor) -> Tensor:
    """Strides of size-1 dimensions, which mean nothing, made absurd."""
    return _strided(t, [(1 << 40) + 7 if d == 1 else s for d, s in zip(t.dim, t.stride)])


@dataclass(frozen=True)
class Variant:
    """A way to derive a problem: layouts of inputs and outputs; `shift` elements from alignment."""

    inputs: Callable[[Tensor], Tensor]
    outputs: Callable[[Tensor], Tensor] | None = None
    shift: int = 0


def _same(t: Tensor) -> Tensor:
    return t


VARIANTS: dict[str, Variant] = {
    "plain": Variant(_same),
    "nhwc": Variant(_nhwc, _nhwc),
    "nhwc_data": Variant(_nhwc_data),
    "nhwc_to_nchw": Variant(_nhwc, _same),
    "padded": Variant(_padded, _padded),
    "nhwc_padded": Variant(_nhwc_padded, _nhwc_padded),
    "spaced": Variant(_spaced, _spaced),
    "reversed": Variant(_reversed, _reversed),
    "repeated": Variant(_repeated),
    "odd_ones": Variant(_odd_ones, _odd_ones),
    "misaligned": Variant(_same, None, 1),
}


def variants(line: str, dtypes: Sequence[DType | str] = ("f32",)) -> Iterator[tuple[str, Graph]]:
    """(label, graph) for each dtype and each variant of a problem line that differs from the ones before."""
    seen: set[tuple[Any, ...]] = set()
    for kind in dtypes:
        for label, v in VARIANTS.items():
            g = derive(of_dtype(Graph.parse(line), dtype(kind)), v.inputs, v.outputs)
            key = (g.line, v.shift, tuple(t.stride for t in g.tensors.values()))
            if key not in seen:
                seen.add(key)
                yield f"{label}-{dtype(kind).name}", g


def of_dtype(graph: Graph, kind: DType) -> Graph:
    """The graph with inputs that have the first input's dtype changed to `kind`.

    Statistics (mean, inv_std, lse) stay in fp32 unless `kind` is f64.
    """
    first = graph.inputs[0].dtype
    kept = {"alpha", "mean", "inv_std", "lse", "running_mean", "running_var", "var"}

    def change(t: Tensor) -> Tensor:
        if kind == F64 and first.is_float and t.dtype.is_float:  # f64 goes with f64 alone
            return replace(t, dtype=kind)
        if t.dtype != first or not first.is_float or (t.name in kept and kind in (BF16, F16)):
            return t
        return replace(t, dtype=kind)

    return derive(graph, change)


# --- memory ---
_libc = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


class Guarded:
    """Memory between forbidden pages, up against one of them ("end" or "start"), full of NaN (bytes 0xff)."""

    def __init__(self, nbytes: int, at: str = "end", align: int = 1) -> None:
        room = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self.map = mmap.mmap(-1, room + 2 * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        for edge in (base, base + _PAGE + room):
            if _libc.mprotect(ctypes.c_void_p(edge), _PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.offset = _PAGE + ((room - nbytes) // align * align if at == "end" else 0)
        self.address = base + self.offset
        self.bytes = np.frombuffer(self.map, np.uint8, nbytes, self.offset)
        self.bytes[:] = 0xFF


def allocate(t: Tensor, at: str = "end", shift: int = 0) -> tuple[Array, Guarded]:
    """An array with the tensor's metadata against a forbidden page, full of NaN (-1 if integers).

    shift: elements by which its address is off what `at` gives.
    """
    size = t.dtype.itemsize
    memory = Guarded((t.span + shift) * size, at)
    start = shift * size if at == "start" else 0
    flat = memory.bytes[start : start + t.span * size].view(t.dtype.numpy)
    stride = [0 if d == 1 else s * size for d, s in zip(t.dim, t.stride)]
    if t.numel == 0:
        return np.empty(t.dim, t.dtype.numpy), memory
    return np.lib.stride_tricks.as_strided(flat, t.dim, stride), memory


def store(t: Tensor, values: Array, at: str = "end", shift: int = 0) -> tuple[Array, Guarded]:
    """As `allocate`, holding `values` (of which stride-0 dimensions show the last slice)."""
    a, memory = allocate(t, at, shift)
    with np.errstate(over="ignore", invalid="ignore"):
        a[...] = values
    return a, memory


def run_program(program: Program, arrays: Mapping[str, Array], threads: int = 1, at: str = "end") -> None:
    """Run an engine's program on arrays by tensor name, its workspace guarded and full of NaN.

    Raises ExecutionError if it reports a code.
    """
    if not isinstance(program, NativeProgram):
        program.run(arrays)
        return
    from vlug.codegen import native

    with config.THREADS.using(threads):
        env = native.env()
    pointers = [0 if n is None else arrays[n].ctypes.data for n in program.operands]
    tensors = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
    args = (ctypes.c_int64 * max(1, len(program.args)))(*program.args)
    workspace = Guarded(program.workspace_size(env.threads), at, 64)
    f = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(program.address)
    code = f(tensors, args, workspace.address, ctypes.addressof(env))
    if code:
        raise ExecutionError(f"the program reported code {code}")


# --- comparison ---
def tolerance(graph: Graph, inputs: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, Array]:
    """What each element of each output may be off: 2 × the largest error of a plain run + 2 ulp.

    The plain run has fp32 arithmetic (f64 for f64 inputs), sums term by term, and rounds every tensor to its
    dtype, intermediates too. Over few different outputs one run may be exact by luck: then the largest error
    of several runs, on other values, counts; so where many outputs hang on few sums.
    """
    worst = _plain_errors(graph, inputs, expected)
    few = any(np.unique(expected[t.name]).size < FEW for t in graph.outputs)
    if few or any(n.op.name in FEW_SUMS for n in graph):
        for seed in range(1, 9):
            more = _repeated_slices(graph, fill(graph, "real", seed))
            for name, error in _plain_errors(graph, more, evaluate(graph, more)).items():
                worst[name] = max(worst[name], error)
    return {t.name: 2 * worst[t.name] + 2 * ulp(expected[t.name], t.dtype) for t in graph.outputs}


FEW = 64
#: Operations each of whose results holds the rounding error of one of a few sums: a sequence's loss.
FEW_SUMS = frozenset({"ctc_loss_backward"})


def _plain_errors(
    graph: Graph, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, float]:
    """The largest error of a plain run in each output, non-finite elements aside.

    Of f64 the reference itself is no more exact than a plain run: there the error of the same graph in f32
    counts, in proportion, and half as much again for the reference's own.
    """
    narrow = _in_f32(graph) if is_double(graph) else None
    if narrow is not None:
        rounded = {t.name: _rounded(inputs[t.name], t.dtype) for t in narrow.inputs}
        found = _plain_errors(narrow, rounded, evaluate(narrow, rounded))
        return {name: 1.5 * 2.0**-29 * error for name, error in found.items()}
    rough, worst = plain(graph, inputs), {}
    for t in graph.outputs:
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(rough[t.name] - expected[t.name])
        error = error[np.isfinite(error)]
        worst[t.name] = float(error.max()) if error.size else 0.0
    return worst


def _in_f32(graph: Graph) -> Graph | None:
    """The graph with f32 for f64; None where an operation says f64 by an attribute."""
    try:
        narrow = derive(graph, lambda t: replace(t, dtype=F32) if t.dtype == F64 else t)
    except DTypeError:
        return None
    return None if is_double(narrow) else narrow


def _rounded(a: Array, d: DType) -> Array:
    return held(a, d) if d.kind == "f" else a


def _repeated_slices(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs as arrays of the graph's strides hold them: a dimension of stride 0 repeats one slice."""
    for t in graph.inputs:
        for axis, (d, s) in enumerate(zip(t.dim, t.stride)):
            if s == 0 and d > 1:
                inputs[t.name] = np.broadcast_to(inputs[t.name].take([0], axis), t.dim)
    return inputs


def ulp(a: Array, d: DType) -> Array:
    """Distance between neighbours of `d` at each element of `a` (0 where it is not finite)."""
    if d.kind != "f":
        return np.zeros(a.shape)
    least = {F16: -14, F64: -1022}.get(d, -126)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log2(np.abs(a)))
    power = np.where(np.isfinite(power), np.maximum(power, least), least)
    return np.where(np.isfinite(a), np.exp2(power - d.mantissa), 0.0)


def compare(
    graph: Graph,
    got: Mapping[str, Array],
    expected: Mapping[str, Array],
    allowed: Mapping[str, Array] | None,
    what: str,
) -> None:
    """Raise Mismatch unless every output is `expected` within `allowed`, or equal if that is None."""
    for t in graph.outputs:
        have = np.asarray(got[t.name]).astype(np.float64 if t.dtype.kind == "f" else np.int64)
        want = expected[t.name]
        if allowed is None or t.dtype.kind != "f":
            # integers wrap around, as the operations on them do
            rounded = held(want, t.dtype) if t.dtype.kind == "f" else want.astype(t.dtype.numpy)
            wrong = ~((have == rounded) | (np.isnan(have) & np.isnan(rounded)))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                near = np.abs(have - want) <= allowed[t.name]
                rounded = held(want, t.dtype)
            same = (have == rounded) | (np.isnan(have) & np.isnan(rounded))
            wrong = ~np.where(np.isfinite(rounded), near, same)
        if np.any(wrong):
            raise Mismatch(_report(what, t, have, want, wrong, None if allowed is None else allowed[t.name]))


def _report(what: str, t: Tensor, have: Array, want: Array, wrong: Array, allowed: Array | None) -> str:
    places = np.argwhere(wrong)
    lines = [f"{what}\n  {t}: {len(places)} of {wrong.size} elements are wrong"]
    for at in places[:5]:
        i = tuple(int(v) for v in at)
        off = "" if allowed is None else f" (may be off {np.broadcast_to(allowed, want.shape)[i]:.3g})"
        lines.append(f"    {t.name}[{', '.join(map(str, i))}] is {have[i]!r}, not {want[i]!r}{off}")
    return "\n".join(lines)


# --- one check ---
@dataclass(frozen=True)
class Case:
    """A problem ready to run: the graph, values of its inputs, the results and what they may be off."""

    graph: Graph
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    allowed: Mapping[str, Array] | None

    @classmethod
    def of(cls, graph: Graph, kind: str = "real", seed: int = 0) -> Case:
        inputs = _repeated_slices(graph, fill(graph, kind, seed))
        with np.errstate(all="ignore"):
            expected = evaluate(graph, inputs)
            exact = kind == "exact" and all(n.op.is_exact for n in graph) and _holds(graph, expected)
            allowed = None if exact else tolerance(graph, inputs, expected)
        return cls(graph, inputs, expected, allowed)

    def without_denormals(self) -> Case:
        """The case with zeros in the place of denormal inputs."""
        inputs = {name: _without_denormals(a) for name, a in self.inputs.items()}
        pairs = ((a, self.inputs[name]) for name, a in inputs.items())
        if all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
            return self
        with np.errstate(all="ignore"):
            expected = evaluate(self.graph, inputs)
            allowed = None if self.allowed is None else tolerance(self.graph, inputs, expected)
        return Case(self.graph, inputs, expected, allowed)


def _without_denormals(a: Array) -> Array:
    """Zeros of the same sign for what is denormal in fp32 and bf16."""
    return np.where(np.abs(a) < 2.0**-126, np.copysign(0.0, a), a) if a.dtype.kind == "f" else a


def _holds(graph: Graph, values: Mapping[str, Array]) -> bool:
    """Whether intermediates are exact in their dtypes, so that it is the same whether they are rounded."""
    return all(
        np.array_equal(held(values[t.name], t.dtype), values[t.name])
        for t in graph.virtuals
        if t.dtype.kind == "f"
    )


def check(
    problem: str | Graph | Case,
    engine: Engine | str,
    fill: str = "exact",
    threads: int | Sequence[int] = 1,
    *,
    device: CpuDevice | None = None,
    settings: EngineConfig | None = None,
    seed: int = 0,
    at: str = "end",
    shift: int = 0,
) -> str | None:
    """Hold an engine to a problem's definition; None if it did well, its reason if it refuses the problem.

    threads:  one count or several: then the results must be equal bit for bit.
    device:   default: this machine (capped by VLUG_ISA). settings: default: the engine's.
    at:       the forbidden page that arrays lie against, "end" or "start"; shift: elements off it.

    Raises Mismatch, whose message begins with everything needed to run the same again.
    """
    if isinstance(engine, str):
        from vlug.engines import engine as find

        engine = find(engine)
    if device is None:
        from vlug.runtime.device import host

        device = host()
    if fill == "exact" and engine.notes & INEXACT:
        fill = "real"
    case, graph = None, problem
    if isinstance(graph, Case):
        case, graph = graph, graph.graph
    elif isinstance(graph, str):
        graph = Graph.parse(graph)
    why = engine.why_not(graph, device)
    if why is not None:
        return why
    case = case or Case.of(graph, fill, seed)
    if engine.notes & NO_DENORMALS:
        case = case.without_denormals()
    settings = settings or engine.default(graph, device)
    counts = (threads,) if isinstance(threads, int) else tuple(threads)
    what = f"{graph.line}\n  on {settings}, {device.isa}, {fill} fill, seed {seed}, arrays at the {at}"
    if shift:
        what += f", shifted by {shift}"
    if any(d == 1 for t in graph.tensors.values() for d in t.dim):
        what += f", strides { ({t.name: t.stride for t in graph.tensors.values()}) }"
    program = engine.compile(graph, settings, device)
    first: dict[str, Array] = {}
    for n in counts:
        label = f"{what}, {n} threads"
        got = _run_guarded(case, program, n, at, shift, label)
        compare(graph, got, case.expected, case.allowed, label)
        for name, a in got.items():
            bits = np.ascontiguousarray(a).view(np.uint8)
            if name in first and not np.array_equal(first[name], bits):
                raise Mismatch(f"{label}\n  {name}: not the same bits as with {counts[0]} threads")
            first.setdefault(name, bits)
    return None


def _run_guarded(
    case: Case, program: Program, threads: int, at: str, shift: int, what: str
) -> dict[str, Array]:
    g = case.graph
    held = {t.name: store(t, case.inputs[t.name], at, shift) for t in g.inputs}
    before = {n: m.bytes.copy() for n, (_, m) in held.items()}
    held |= {t.name: allocate(t, at, shift) for t in g.outputs}
    try:
        run_program(program, {n: a for n, (a, _) in held.items()}, threads, at)
    except ExecutionError as e:
        raise Mismatch(f"{what}\n  {e}") from None
    for name, was in before.items():
        if not np.array_equal(was, held[name][1].bytes):
            raise Mismatch(f"{what}\n  {name}: an input was written to")
    for t in g.outputs:
        a, memory = held[t.name]
        kept = a.copy()
        if a.size:
            a.view(np.dtype(f"u{t.dtype.itemsize}"))[...] = np.iinfo(f"u{t.dtype.itemsize}").max
        if np.any(memory.bytes != 0xFF):
            raise Mismatch(f"{what}\n  {t.name}: memory between its elements was written to")
        held[t.name] = (kept, memory)
    return {t.name: held[t.name][0] for t in g.outputs}


# --- made-up problems ---
def problem_lines(name: str) -> Any:
    """A hypothesis strategy of small valid problem lines of an operation (needs hypothesis)."""
    from hypothesis import strategies as st

    from vlug.testing_lines import LINES

    return st.builds(LINES[name], st.randoms(use_true_random=False))
