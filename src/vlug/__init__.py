"""vlug: an open library of tuned deep-learning primitives.

Eager calls on arrays are here (`conv2d`, `matmul`, `softmax` …); graphs are `Graph`, their execution is
in `vlug.plan`. Importing vlug costs a few milliseconds: a name is loaded when it is first asked for, and no
framework or compiler before it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vlug._version import __version__

if TYPE_CHECKING:
    from vlug.dtypes import DType, dtype
    from vlug.errors import (
        BadInput,
        ConfigError,
        DTypeError,
        ExecutionError,
        NotSupported,
        ParseError,
        ShapeError,
        VlugError,
        VlugWarning,
    )
    from vlug.frontends.hooks import disable, enable, reset_stats, stats, using
    from vlug.functional import (
        adam_step,
        adamw_step,
        add,
        amax,
        amax_backward,
        amin,
        amin_backward,
        avg_pool2d,
        avg_pool2d_backward,
        batch_norm,
        batch_norm_backward,
        batch_norm_training,
        binary_cross_entropy_with_logits,
        binary_cross_entropy_with_logits_backward,
        conv2d,
        conv2d_backward,
        cross_entropy,
        cross_entropy_backward,
        dropout,
        dropout_backward,
        embedding,
        embedding_backward,
        group_norm,
        group_norm_backward,
        huber_loss,
        huber_loss_backward,
        instance_norm,
        instance_norm_backward,
        kl_div,
        kl_div_backward,
        l1_loss,
        l1_loss_backward,
        layer_norm,
        layer_norm_backward,
        linear,
        linear_backward,
        log_softmax,
        log_softmax_backward,
        matmul,
        max_pool2d,
        max_pool2d_backward,
        mean,
        mean_backward,
        mse_loss,
        mse_loss_backward,
        mul,
        nll_loss,
        nll_loss_backward,
        prod,
        prod_backward,
        reduce,
        reduce_backward,
        relu,
        relu_backward,
        rms_norm,
        rms_norm_backward,
        rng,
        sgd_step,
        smooth_l1_loss,
        smooth_l1_loss_backward,
        softmax,
        softmax_backward,
        sum,
        sum_backward,
        vector_norm,
        vector_norm_backward,
    )
    from vlug.graph import Graph
    from vlug.tensor import Tensor

#: Where public names are that are not eager calls.
_MODULES = {
    "vlug.dtypes": "DType dtype",
    "vlug.errors":
        "BadInput ConfigError DTypeError ExecutionError NotSupported ParseError ShapeError "
        "VlugError VlugWarning",
    "vlug.frontends.hooks": "disable enable reset_stats stats using",
    "vlug.graph": "Graph",
    "vlug.tensor": "Tensor",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vlug' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE.get(name, "vlug.functional")), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BadInput",
    "ConfigError",
    "DType",
    "DTypeError",
    "ExecutionError",
    "Graph",
    "NotSupported",
    "ParseError",
    "ShapeError",
    "Tensor",
    "VlugError",
    "VlugWarning",
    "__version__",
    "adam_step",
    "adamw_step",
    "add",
    "amax",
    "amax_backward",
    "amin",
    "amin_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_training",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_backward",
    "conv2d",
    "conv2d_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "disable",
    "dropout",
    "dropout_backward",
    "dtype",
    "embedding",
    "embedding_backward",
    "enable",
    "group_norm",
    "group_norm_backward",
    "huber_loss",
    "huber_loss_backward",
    "instance_norm",
    "instance_norm_backward",
    "kl_div",
    "kl_div_backward",
    "l1_loss",
    "l1_loss_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "max_pool2d",
    "max_pool2d_backward",
    "mean",
    "mean_backward",
    "mse_loss",
    "mse_loss_backward",
    "mul",
    "nll_loss",
    "nll_loss_backward",
    "prod",
    "prod_backward",
    "reduce",
    "reduce_backward",
    "relu",
    "relu_backward",
    "reset_stats",
    "rms_norm",
    "rms_norm_backward",
    "rng",
    "sgd_step",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
    "softmax",
    "softmax_backward",
    "stats",
    "sum",
    "sum_backward",
    "using",
    "vector_norm",
    "vector_norm_backward",
]
