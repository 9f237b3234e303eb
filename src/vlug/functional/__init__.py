"""Eager calls on arrays: conv2d, matmul, max_pool2d, batch_norm, softmax, cross_entropy … and their backward.

Arguments are NumPy arrays, CPU tensors with DLPack (PyTorch's too) or buffers; nothing is copied, unless a
stride is negative. Results are new NumPy arrays (bfloat16 through ml_dtypes) or what `out` names. Every
argument is checked before native code runs: wrong ranks, dims, dtypes, devices, classes out of range, a
read-only `out` or one that overlaps an input raise BadInput (ShapeError, DTypeError), which names it.

Layouts are the arrays' own: NHWC data is an N, C, H, W array with those strides. A result is channels last if
an input is.
"""

from vlug.functional.conv import conv2d, conv2d_backward
from vlug.functional.dropout import dropout, dropout_backward, rng
from vlug.functional.lookup import (
    embedding,
    embedding_backward,
)
from vlug.functional.loss import (
    cross_entropy,
    cross_entropy_backward,
    nll_loss,
    nll_loss_backward,
)
from vlug.functional.losses import (
    binary_cross_entropy_with_logits,
    binary_cross_entropy_with_logits_backward,
    huber_loss,
    huber_loss_backward,
    kl_div,
    kl_div_backward,
    l1_loss,
    l1_loss_backward,
    mse_loss,
    mse_loss_backward,
    smooth_l1_loss,
    smooth_l1_loss_backward,
)
from vlug.functional.norm import batch_norm, batch_norm_backward, batch_norm_training
from vlug.functional.norm_groups import (
    group_norm,
    group_norm_backward,
    instance_norm,
    instance_norm_backward,
)
from vlug.functional.norm_rows import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from vlug.functional.optim import adam_step, adamw_step, sgd_step
from vlug.functional.pointwise import add, mul, relu, relu_backward
from vlug.functional.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool1d_backward,
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward,
    adaptive_avg_pool3d,
    adaptive_avg_pool3d_backward,
    adaptive_max_pool1d,
    adaptive_max_pool1d_backward,
    adaptive_max_pool2d,
    adaptive_max_pool2d_backward,
    adaptive_max_pool3d,
    adaptive_max_pool3d_backward,
    avg_pool1d,
    avg_pool1d_backward,
    avg_pool2d,
    avg_pool2d_backward,
    avg_pool3d,
    avg_pool3d_backward,
    max_pool1d,
    max_pool1d_backward,
    max_pool2d,
    max_pool2d_backward,
    max_pool3d,
    max_pool3d_backward,
)
from vlug.functional.products import linear, linear_backward, matmul
from vlug.functional.reduction import (
    amax,
    amax_backward,
    amin,
    amin_backward,
    mean,
    mean_backward,
    prod,
    prod_backward,
    reduce,
    reduce_backward,
    sum,
    sum_backward,
    vector_norm,
    vector_norm_backward,
)
from vlug.functional.resample import (
    interpolate,
    interpolate_backward,
)
from vlug.functional.rows import log_softmax, log_softmax_backward, softmax, softmax_backward
from vlug.functional.sequences import (
    ctc_loss,
    ctc_loss_backward,
)

__all__ = [
    "adam_step",
    "adamw_step",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool1d_backward",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward",
    "adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_backward",
    "add",
    "amax",
    "amax_backward",
    "amin",
    "amin_backward",
    "avg_pool1d",
    "avg_pool1d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_training",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_backward",
    "conv2d",
    "conv2d_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "ctc_loss",
    "ctc_loss_backward",
    "dropout",
    "dropout_backward",
    "embedding",
    "embedding_backward",
    "group_norm",
    "group_norm_backward",
    "huber_loss",
    "huber_loss_backward",
    "instance_norm",
    "instance_norm_backward",
    "interpolate",
    "interpolate_backward",
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
    "max_pool1d",
    "max_pool1d_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool3d",
    "max_pool3d_backward",
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
    "rms_norm",
    "rms_norm_backward",
    "rng",
    "sgd_step",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
    "softmax",
    "softmax_backward",
    "sum",
    "sum_backward",
    "vector_norm",
    "vector_norm_backward",
]
