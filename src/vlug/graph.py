"""Graph: operations on tensors, checked as they are added, printed and parsed as one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from vlug.dtypes import F32, DType
from vlug.errors import BadInput, DTypeError, ParseError, ShapeError
from vlug.ops.base import OPERATIONS, Cost, Operation
from vlug.ops.builder import Methods
from vlug.tensor import Tensor

__all__ = ["Graph", "Node"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Node:
    """One operation of a graph: tensor names of its ports in order, None where a port is left out."""

    op: Operation
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]


class Graph(Methods):
    """A directed acyclic graph of operations, in the order they were added.

    >>> g = Graph()
    >>> x, w = g.tensor("x", (8, 64, 56, 56)), g.tensor("w", (64, 64, 3, 3))
    >>> y = g.relu(g.conv_fprop(x, w, padding=1))

    Builder methods are the operations' names; attributes are keywords. Any tensor that no later operation
    reads is an output of the graph; `output(t)` makes one of a tensor that is also read.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self._marked: set[str] = set()
        self._line: str | None = None

    # --- building ---
    def tensor(
        self,
        name: str,
        dim: Sequence[int],
        dtype_: DType | str = F32,
        layout: str | Sequence[int] = "nchw",
    ) -> Tensor:
        """Declare an input: logical dims, dtype, layout ("nchw", "nhwc" or strides in elements)."""
        return self._declare(Tensor.of(dim, dtype_, layout, name))

    def like(self, name: str, t: Tensor) -> Tensor:
        """Declare an input with the metadata of `t`."""
        return self._declare(replace(t, name=name, virtual=False))

    def _declare(self, t: Tensor) -> Tensor:
        if not _NAME.match(t.name) or t.name == "_":
            raise BadInput(f"tensor name: {t.name!r} must be a letter followed by letters, digits or _")
        if t.name in self.tensors:
            raise BadInput(f"tensor name: {t.name!r} is already in the graph")
        self.tensors[t.name] = t
        self._line = None
        return t

    def fresh(self, stem: str) -> str:
        """A tensor name that is free: the stem itself, or with a number."""
        name, n = stem, 2
        while name in self.tensors:
            name, n = f"{stem}{n}", n + 1
        return name

    def append(
        self,
        op: Operation,
        inputs: Sequence[Tensor | None],
        names: Sequence[str | None] | None = None,
        like: Sequence[Tensor | None] | None = None,
    ) -> tuple[Tensor, ...]:
        """Append an operation; returns its outputs.

        names: of the outputs; "_" (or None) for one that is not wanted (ports with "?"). Default: free names.
        like:  metadata that replaces what the operation infers (strides, dtype); dims must agree.
        """
        ports = [*inputs, *[None] * (len(op.inputs) - len(inputs))]
        if len(ports) != len(op.inputs):
            raise BadInput(f"{op.name}: {len(inputs)} inputs came, it has {', '.join(op.inputs)}")
        for port, t in zip(op.inputs, ports):
            if t is None and not port.endswith("?"):
                raise BadInput(f"{op.name}: input {port} is missing")
            if t is not None and self.tensors.get(t.name) is not t:
                raise BadInput(f"{op.name}: {port} ({t}) is not a tensor of this graph")
        inferred = op.infer(*ports)
        op = op.bind(ports)
        wanted = (
            list(names)
            if names is not None
            else [self.fresh(o.rstrip("?")) for o in op.outputs[: len(inferred)]]
        )
        if len(wanted) > len(op.outputs):
            n = len(op.outputs)
            raise BadInput(
                f"{op.name}: {len(wanted)} names came, but {op.name} has {n} output{'s' * (n > 1)}"
            )
        wanted += ["_"] * (len(op.outputs) - len(wanted))
        for port, name in zip(op.outputs[len(inferred) :], wanted[len(inferred) :]):
            if name is not None and name != "_":
                raise BadInput(f"{op.name}: output {port.rstrip('?')} does not exist without its inputs")
        likes = [*(like or ()), *[None] * len(op.outputs)]
        outs: list[str | None] = []
        created: list[Tensor] = []
        for port, t, name, given in zip(op.outputs, inferred, wanted, likes):
            if name is None or name == "_":
                if not port.endswith("?"):
                    raise BadInput(f"{op.name}: output {port} cannot be left out")
                outs.append(None)
                continue
            if given is not None:
                if given.dim != t.dim:
                    raise ShapeError(f"{op.name}: {port} has dims {t.dim}, not {given.dim}")
                if given.dtype.kind != t.dtype.kind:
                    raise DTypeError(f"{op.name}: {port} is {t.dtype}, not {given.dtype}")
                if given.overlaps:
                    raise ShapeError(f"{op.name}: {port}'s strides {given.stride} make elements share memory")
                t = replace(given, virtual=False)
            t = self._declare(replace(t, name=name, virtual=False))
            outs.append(name)
            created.append(t)
        outs += [None] * (len(op.outputs) - len(outs))
        node = Node(op, tuple(None if t is None else t.name for t in ports), tuple(outs))
        self.nodes.append(node)
        self._line = None
        return tuple(created)

    def output(self, t: Tensor) -> Tensor:
        """Make `t` an output of the graph although another operation reads it."""
        if self.tensors.get(t.name) is not t:
            raise BadInput(f"output: {t} is not a tensor of this graph")
        self._marked.add(t.name)
        self._line = None
        return t

    def call(self, name: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Add the operation `name`; returns its output, or a tuple where it has several.

        `names=` and `like=` as in `append`. Spatial attributes may be one int for all dimensions;
        `padding=` sets pre_padding and post_padding alike.
        """
        names, like = attributes.pop("names", None), attributes.pop("like", None)
        op_type = _operation(name)
        attributes = {k: v for k, v in attributes.items() if v is not None}
        rank, kinds = op_type.spatial_rank(inputs), op_type.fields()
        if "padding" in attributes and "pre_padding" in kinds:
            attributes["pre_padding"] = attributes["post_padding"] = attributes.pop("padding")
        for key, value in attributes.items():
            if key not in kinds:
                raise BadInput(f"{name}: attribute {key!r} is unknown; it has {', '.join(kinds)}")
            if isinstance(value, int) and not isinstance(value, bool) and "tuple" in str(kinds[key]):
                attributes[key] = (value,) * rank
            elif isinstance(value, Sequence) and not isinstance(value, str):
                attributes[key] = tuple(int(v) for v in value)
        missing = [k for k in op_type.required() if k not in attributes]
        if missing:
            raise BadInput(f"{name}: attribute {missing[0]} is required")
        outs = self.append(op_type(**attributes), inputs, names, like)
        return outs[0] if len(outs) == 1 else outs

    # --- reading ---
    @property
    def consumed(self) -> set[str]:
        return {n for node in self.nodes for n in node.inputs if n is not None}

    @property
    def produced(self) -> set[str]:
        return {n for node in self.nodes for n in node.outputs if n is not None}

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that come from outside, in the order they are first read."""
        made, seen = self.produced, dict.fromkeys(n for node in self.nodes for n in node.inputs if n)
        return tuple(self.tensors[n] for n in seen if n not in made)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors that the graph hands out, in the order they are made."""
        read = self.consumed
        return tuple(
            self.tensors[n]
            for node in self.nodes
            for n in node.outputs
            if n is not None and (n not in read or n in self._marked)
        )

    @property
    def virtuals(self) -> tuple[Tensor, ...]:
        """Intermediates: made and read inside, not handed out."""
        out = {t.name for t in self.outputs}
        return tuple(self.tensors[n] for n in self.tensors if n in self.produced and n not in out)

    @property
    def cost(self) -> Cost:
        """Sum of the operations' flops; bytes of inputs and outputs only (a fused run moves no more)."""
        flops = sum(n.op.cost(self.ins(n), self.outs(n)).flops for n in self.nodes)
        return Cost(flops, sum(t.nbytes for t in (*self.inputs, *self.outputs)))

    def ins(self, node: Node) -> tuple[Tensor | None, ...]:
        return tuple(None if n is None else self.tensors[n] for n in node.inputs)

    def outs(self, node: Node) -> tuple[Tensor | None, ...]:
        return tuple(None if n is None else self.tensors[n] for n in node.outputs)

    def subgraph(self, nodes: Sequence[int]) -> Graph:
        """The graph of some of the nodes; what later nodes outside still read becomes an output."""
        g, chosen = Graph(), set(nodes)
        g.nodes = [self.nodes[i] for i in sorted(chosen)]
        names = {n for node in g.nodes for n in (*node.inputs, *node.outputs) if n is not None}
        g.tensors = {n: t for n, t in self.tensors.items() if n in names}
        outside = {n for i, node in enumerate(self.nodes) if i not in chosen for n in node.inputs if n}
        handed_out = {t.name for t in self.outputs}
        g._marked = {n for n in g.produced if n in outside or n in handed_out} & g.consumed
        return g

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    # --- one line of text ---
    @property
    def line(self) -> str:
        """The problem line: parses back to an equal graph, and is the graph's key everywhere."""
        if self._line is None:
            self._line = self._write()
        return self._line

    def _write(self) -> str:
        parts: list[str] = []
        known: set[str] = set()
        for at, node in enumerate(self.nodes):
            words = [node.op.name]
            free_until_here = True  # a bare name is read as the first port that is still free
            for port, name in zip(node.op.inputs, node.inputs):
                if name is None:
                    free_until_here = False
                    continue
                port = port.rstrip("?")
                if name in known:
                    words.append(name if free_until_here else f"{port}={name}")
                else:
                    label = port if name == port else f"{port}:{name}"
                    words.append(f"{label}={self.tensors[name].spec}")
                    known.add(name)
            words += [f"{k}={v}" for k, v in node.op.attributes(self.ins(node)).items()]
            words_out: list[str] = []
            plain = True
            inferred = node.op.infer(*self.ins(node))
            for i, (port, name) in enumerate(zip(node.op.outputs, node.outputs)):
                if name is None:
                    words_out.append("_")
                    plain = plain and i >= len(inferred)
                    continue
                t, guess = self.tensors[name], inferred[i]
                same = t.normalised.stride == guess.normalised.stride and t.dtype == guess.dtype
                mark = "!" if name in self._marked and name in self.consumed else ""
                words_out.append(name + mark + ("" if same else "=" + t.spec))
                plain = plain and name == port.rstrip("?") and same and not mark
                known.add(name)
            while words_out and words_out[-1] == "_":
                words_out.pop()
            last = at == len(self.nodes) - 1
            if not (last and plain):
                words.append("-> " + ", ".join(words_out))
            parts.append(" ".join(words))
        return "; ".join(parts)

    @property
    def key(self) -> str:
        return self.line

    def __str__(self) -> str:
        return self.line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.line == other.line

    def __hash__(self) -> int:
        return hash(self.line)

    @classmethod
    def parse(cls, line: str) -> Graph:
        """The graph of a problem line; docs/design.md has the grammar. Raises ParseError or ShapeError."""
        g = cls()
        for clause in line.strip().split(";"):
            if clause.strip():
                g._parse_clause(clause.strip())
        if not g.nodes:
            raise ParseError("problem line: it holds no operation")
        return g

    def _parse_clause(self, clause: str) -> None:
        head, _, tail = clause.partition("->")
        if not head.strip():
            raise ParseError(f"problem line: {clause!r} names no operation")
        name, *words = head.split()
        op_type = _operation(name)
        ports: dict[str, Tensor | None] = {p.rstrip("?"): None for p in op_type.inputs}
        given: dict[str, str] = {}
        for word in words:
            key, eq, value = word.partition("=")
            port, _, label = key.partition(":")
            if not eq:
                free = next((p for p, t in ports.items() if t is None), None)
                if word not in self.tensors or free is None:
                    raise ParseError(f"{name}: {word!r} is neither name=value nor a tensor named before")
                ports[free] = self.tensors[word]
            elif port in ports:
                if value in self.tensors and not value[0].isdigit():
                    ports[port] = self.tensors[value]
                elif value[:1].isdigit() or value.startswith("scalar"):
                    ports[port] = self._declare(Tensor.parse(value, label or self.fresh(port)))
                else:
                    raise ParseError(f"{name}: {port}={value!r} is neither dims nor a tensor named before")
            else:
                given[key] = value
        inputs = list(ports.values())
        op = op_type.from_attributes(given, inputs)
        names: list[str | None] | None = None
        likes: list[Tensor | None] = []
        marks = []
        if tail.strip():
            names = []
            for word in tail.split(","):
                label, _, spec = word.strip().partition("=")
                if label.endswith("!"):
                    label = label[:-1]
                    marks.append(label)
                names.append(label)
                likes.append(Tensor.parse(spec, label) if spec else None)
        self.append(op, inputs, names, likes)
        self._marked.update(marks)
        self._line = None


def _operation(name: str) -> type[Operation]:
    if name not in OPERATIONS:
        near = get_close_matches(name, OPERATIONS, 5, 0.5)
        like = f"; the nearest are {', '.join(near)}" if near else ""
        raise ParseError(
            f"operation: {name!r} is unknown{like} (`vlug list operations` tells all {len(OPERATIONS)})"
        )
    return OPERATIONS[name]
