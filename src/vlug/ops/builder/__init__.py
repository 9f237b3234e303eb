"""The builder methods of Graph, one an operation, with cuDNN's names: written out to be found and typed."""

from vlug.ops.builder.activation import ActivationMethods
from vlug.ops.builder.arithmetic import ArithmeticMethods
from vlug.ops.builder.conv import ConvMethods
from vlug.ops.builder.ctc import CtcMethods
from vlug.ops.builder.dropout import DropoutMethods
from vlug.ops.builder.embedding import EmbeddingMethods
from vlug.ops.builder.grid import GridMethods
from vlug.ops.builder.layout import LayoutMethods
from vlug.ops.builder.logic import LogicMethods
from vlug.ops.builder.loss import LossMethods
from vlug.ops.builder.matmul import MatmulMethods
from vlug.ops.builder.nll import NllMethods
from vlug.ops.builder.norm import NormMethods
from vlug.ops.builder.optim import OptimMethods
from vlug.ops.builder.pointwise import PointwiseMethods
from vlug.ops.builder.pointwise_loss import PointwiseLossMethods
from vlug.ops.builder.pool import PoolMethods
from vlug.ops.builder.reduction import ReductionMethods
from vlug.ops.builder.resample import ResampleMethods
from vlug.ops.builder.softmax import SoftmaxMethods

__all__ = ["Methods"]


class Methods(
    ActivationMethods,
    ArithmeticMethods,
    ConvMethods,
    CtcMethods,
    DropoutMethods,
    EmbeddingMethods,
    LogicMethods,
    LossMethods,
    MatmulMethods,
    NllMethods,
    NormMethods,
    OptimMethods,
    PointwiseMethods,
    PointwiseLossMethods,
    PoolMethods,
    ReductionMethods,
    ResampleMethods,
    LayoutMethods,
    GridMethods,
    SoftmaxMethods,
):
    """Builder methods over `call`. In each, `options` may hold names= and like= (see Graph.append).

    Attributes of spatial dimensions are one int for all of them or one int each. padding= sets pre_padding
    and post_padding alike.
    """
