"""The operators of PyTorch that vlug takes: how their C++ kernels pass each argument.

Kinds, one letter an argument, in schema order:
  T const Tensor&            M Tensor&, written in place       O const optional<Tensor>&
  R const optional<Tensor>&, written in place                  I IntArrayRef or SymIntArrayRef
  J OptionalArrayRef         i int64       s SymInt (a reference to its word)
  b bool                     x bool that changes nothing here (not in the key)
  d double                   B array<bool, 3>                  S const Scalar&
  P optional<int64>          L optional<ScalarType>            t ScalarType
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_NAME", "FAMILIES", "OPERATORS", "SLOT_WORDS", "TENSOR_KINDS", "Operator", "denied"]

#: Words an argument takes in the flat array that an adapter makes of a call.
SLOT_WORDS = {
    "T": 1, "M": 1, "O": 1, "R": 1, "I": 2, "J": 2, "i": 1, "s": 1, "b": 1, "x": 1,
    "d": 1, "B": 1, "S": 2, "P": 2, "L": 1, "t": 1,
}  # fmt: skip
TENSOR_KINDS = "TMOR"


@dataclass(frozen=True)
class Operator:
    """An operator of the `aten` namespace.

    name:    with its overload, as it is registered.
    kinds:   one letter an argument.
    results: how many tensors come back; 0 for one that returns its first argument, changed in place.
    family:  what a user calls it (deny lists take this or the name).
    sym:     whether stock's kernel takes SymInts.
    """

    name: str
    kinds: str
    results: int
    family: str
    sym: bool = False

    @property
    def symbol(self) -> str:
        return self.name.replace(".", "_")

    @property
    def tensors(self) -> int:
        """How many arguments are tensors, present or not."""
        return sum(k in TENSOR_KINDS for k in self.kinds)

    @property
    def offsets(self) -> tuple[int, ...]:
        """First word of each argument in the flat array."""
        out, at = [], 0
        for k in self.kinds:
            out.append(at)
            at += SLOT_WORDS[k]
        return (*out, at)


OPERATORS = (
    Operator("_convolution", "TTOIIIbIsxxxx", 1, "conv2d", sym=True),
    Operator("convolution_backward", "TTTJIIIbIsB", 3, "conv2d", sym=True),
    Operator("native_batch_norm", "TOORRbdd", 3, "batch_norm"),
    Operator("_native_batch_norm_legit", "TOOMMbdd", 3, "batch_norm"),
    Operator("native_batch_norm_backward", "TTOOOOObdB", 3, "batch_norm"),
    Operator("relu", "T", 1, "relu"),
    Operator("relu_", "M", 0, "relu"),
    Operator("threshold_backward", "TTS", 1, "relu"),
    Operator("max_pool2d_with_indices", "TIIIIb", 2, "max_pool2d"),
    Operator("max_pool2d_with_indices_backward", "TTIIIIbT", 1, "max_pool2d"),
    Operator("avg_pool2d", "TIIIbbP", 1, "avg_pool2d"),
    Operator("avg_pool2d_backward", "TTIIIbbP", 1, "avg_pool2d"),
    Operator("mean.dim", "TJbL", 1, "mean"),
    Operator("mm", "TT", 1, "linear"),
    Operator("addmm", "TTTSS", 1, "linear"),
    Operator("_softmax", "Tib", 1, "softmax"),
    Operator("_softmax_backward_data", "TTit", 1, "softmax"),
    Operator("_log_softmax", "Tib", 1, "log_softmax"),
    Operator("_log_softmax_backward_data", "TTit", 1, "log_softmax"),
)
BY_NAME = {op.name: op for op in OPERATORS}
FAMILIES = tuple(dict.fromkeys(op.family for op in OPERATORS))


def denied(names: frozenset[str]) -> frozenset[str]:
    """The operators that a deny list of families and operator names means."""
    return frozenset(op.name for op in OPERATORS if names & {op.name, op.family, f"aten::{op.name}"})
