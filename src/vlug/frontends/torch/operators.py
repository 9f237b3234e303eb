"""The operators of PyTorch that vlug takes: how their C++ kernels pass each argument.

Kinds, one letter an argument, in schema order:
  T const Tensor&            M Tensor&, written in place       O const optional<Tensor>&
  R const optional<Tensor>&, written in place                  I IntArrayRef or SymIntArrayRef
  J OptionalArrayRef         i int64       s SymInt (a reference to its word)
  b bool                     x bool that changes nothing here (not in the key)
  d double                   D optional<double>                S const Scalar&
  B array<bool, 3>           C array<bool, 2>                  F const optional<Scalar>&
  P optional<int64>          o optional<bool>                  a string_view
  L optional<ScalarType>, optional<MemoryFormat>               t ScalarType, MemoryFormat
  N const ITensorListRef&: all its tensors belong to one problem
  E TensorList, one tensor at a time: a call is a problem for each place in its lists, all of which are as
    long as the first, or empty (no tensor)
  v double that goes to the plan when it runs, not into the key: one that changes from call to call. A problem
    makes an operand of it (`Problem.scalar`).
  l IntArrayRef whose length is in the key and whose values go to the plan when it runs (`Problem.numbers`)
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BY_NAME", "FAMILIES", "KINDS", "OPERATORS", "TENSOR_KINDS", "Operator", "denied"]

#: All kinds; an adapter knows each by its place here.
KINDS = "TMORIJisbxdDSBCFPoaLtNEvl"
TENSOR_KINDS = "TMORE"


@dataclass(frozen=True)
class Operator:
    """An operator of the `aten` namespace.

    name:    with its overload, as it is registered.
    kinds:   one letter an argument.
    results: how many tensors come back; 0 for one that returns its first argument, changed in place, or
             nothing (where the first argument is a list).
    family:  what a user calls it (deny lists take this or the name).
    sym:     whether stock's kernel takes SymInts.
    """

    name: str
    kinds: str
    results: int
    family: str
    sym: bool = False

    @property
    def each(self) -> bool:
        """Whether it takes the tensors of its lists one at a time."""
        return "E" in self.kinds

    @property
    def gives(self) -> str:
        """How its kernel returns: "memory" (results), "first" (its first argument) or "nothing"."""
        return "memory" if self.results else "nothing" if self.each else "first"


OPERATORS: tuple[Operator, ...] = (
    Operator("_convolution", "TTOIIIbIsxxxx", 1, "conv2d", sym=True),
    Operator("convolution_backward", "TTTJIIIbIsB", 3, "conv2d", sym=True),
    Operator("native_batch_norm", "TOORRbdd", 3, "batch_norm"),
    Operator("_native_batch_norm_legit", "TOOMMbdd", 3, "batch_norm"),
    Operator("native_batch_norm_backward", "TTOOOOObdB", 3, "batch_norm"),
    Operator("_native_batch_norm_legit.no_stats", "TOObdd", 3, "batch_norm"),
    Operator("native_layer_norm", "TIOOd", 3, "layer_norm", sym=True),
    Operator("native_layer_norm_backward", "TTITTOOB", 3, "layer_norm", sym=True),
    Operator("native_group_norm", "TOOsssid", 3, "group_norm", sym=True),
    Operator("native_group_norm_backward", "TTTTOsssiB", 3, "group_norm", sym=True),
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
    *(
        Operator(f"{name}{overload}", kinds.replace("$", rate), 0, family)
        for name, kinds, family in (
            ("_fused_adam_", "EEEEEE$vvvvbbOO", "adam"),
            ("_fused_adamw_", "EEEEEE$vvvvbbOO", "adam"),
            ("_fused_sgd_", "EEEvv$vbbbOO", "sgd"),
        )
        for overload, rate in (("", "v"), (".tensor_lr", "T"))
    ),
)
#: Activations: the kinds of their numbers, whether they have a form in place, the kinds of their gradient.
_ACTIVATIONS = {
    "sigmoid": ("", True, "TT"), "tanh": ("", True, "TT"), "gelu": ("a", True, "TTa"),
    "silu": ("", True, "TT"), "elu": ("SSS", True, "TSSSbT"), "softplus": ("SS", False, "TTSS"),
    "hardswish": ("", True, "TT"), "hardsigmoid": ("", True, "TT"), "mish": ("", True, "TT"),
    "leaky_relu": ("S", True, "TTSb"), "hardtanh": ("SS", True, "TTSS"),
}  # fmt: skip
OPERATORS += (
    *(Operator(name, f"T{k}", 1, name) for name, (k, _, _) in _ACTIVATIONS.items()),
    *(Operator(f"{name}_", f"M{k}", 0, name) for name, (k, in_place, _) in _ACTIVATIONS.items() if in_place),
    *(Operator(f"{name}_backward", back, 1, name) for name, (_, _, back) in _ACTIVATIONS.items()),
    Operator("_prelu_kernel", "TT", 1, "prelu"),
    Operator("_prelu_kernel_backward", "TTT", 2, "prelu"),
)
OPERATORS += (
    Operator("sum.dim_IntList", "TJbL", 1, "sum"),
    Operator("amax", "TIb", 1, "amax"),
    Operator("amin", "TIb", 1, "amin"),
    Operator("prod", "TL", 1, "prod"),
    Operator("prod.dim_int", "TibL", 1, "prod"),
    Operator("linalg_vector_norm", "TSJbL", 1, "norm"),
    Operator("nll_loss_forward", "TTOii", 2, "nll_loss"),
    Operator("nll_loss_backward", "TTTOiiT", 1, "nll_loss"),
    Operator("nll_loss2d_forward", "TTOis", 2, "nll_loss", sym=True),
    Operator("nll_loss2d_backward", "TTTOisT", 1, "nll_loss", sym=True),
    Operator("_ctc_loss", "TTllib", 2, "ctc_loss"),
    Operator("_ctc_loss.Tensor", "TTTTib", 2, "ctc_loss"),
    Operator("_ctc_loss_backward", "TTTllTTib", 1, "ctc_loss"),
    Operator("_ctc_loss_backward.Tensor", "TTTTTTTib", 1, "ctc_loss"),
    Operator("mse_loss", "TTi", 1, "mse_loss"),
    Operator("mse_loss_backward", "TTTi", 1, "mse_loss"),
    Operator("smooth_l1_loss", "TTid", 1, "smooth_l1_loss"),
    Operator("huber_loss", "TTid", 1, "huber_loss"),
    Operator("index_select", "TiT", 1, "embedding"),
    Operator("embedding_dense_backward", "TTssb", 1, "embedding", sym=True),
)
#: Paddings that are not structured kernels: theirs take SymInts.
_PADS_OF_SYMINTS = ("reflection2", "reflection2_backward", "replication2_backward", "replication3_backward")
OPERATORS += (
    Operator("max_pool3d_with_indices", "TIIIIb", 2, "max_pool3d"),
    Operator("max_pool3d_with_indices_backward", "TTIIIIbT", 1, "max_pool3d"),
    Operator("avg_pool3d", "TIIIbbP", 1, "avg_pool3d"),
    Operator("avg_pool3d_backward", "TTIIIbbP", 1, "avg_pool3d"),
    *(Operator(f"_adaptive_avg_pool{r}d", "TI", 1, "adaptive_avg_pool", sym=True) for r in (2, 3)),
    *(Operator(f"_adaptive_avg_pool{r}d_backward", "TT", 1, "adaptive_avg_pool") for r in (2, 3)),
    *(Operator(f"adaptive_max_pool{r}d", "TI", 2, "adaptive_max_pool") for r in (2, 3)),
    *(Operator(f"adaptive_max_pool{r}d_backward", "TTT", 1, "adaptive_max_pool") for r in (2, 3)),
    *(
        Operator(name + back, f"TI{sizes}{corners}{'D' * r}", 1, "interpolate")
        for r in (1, 2, 3)
        for back, sizes in (("", ""), ("_backward", "I"))
        for name, corners in (
            (f"upsample_nearest{r}d", ""),
            (f"_upsample_nearest_exact{r}d", ""),
            (f"upsample_{('linear', 'bilinear', 'trilinear')[r - 1]}{r}d", "b"),
            *([("upsample_bicubic2d", "b")] if r == 2 else []),
        )
    ),
    *(
        Operator(f"{name}_pad{r}d{back}", kinds, 1, "pad", sym=f"{name}{r}{back}" in _PADS_OF_SYMINTS)
        for name in ("reflection", "replication")
        for r in (1, 2, 3)
        for back, kinds in (("", "TI"), ("_backward", "TTI"))
    ),
    Operator("cat", "Ni", 1, "cat"),
    Operator("grid_sampler_2d", "TTiib", 1, "grid_sample"),
)
BY_NAME = {op.name: op for op in OPERATORS}
FAMILIES = tuple(dict.fromkeys(op.family for op in OPERATORS))


def denied(names: frozenset[str]) -> frozenset[str]:
    """The operators that a deny list of families and operator names means."""
    return frozenset(op.name for op in OPERATORS if names & {op.name, op.family, f"aten::{op.name}"})
