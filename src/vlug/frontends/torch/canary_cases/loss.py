"""What the canary compares: reductions, losses, rows by index."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    F: Any = torch.nn.functional
    r = random(dtype)
    x, t, one = r(4, 5), r(4, 5), r(1)[0]
    logs, w = r(4, 5).log_softmax(1), r(5).abs()
    plane, label = r(2, 5, 3, 2).log_softmax(1), torch.tensor([1, 0, 4, 2])
    spots = torch.arange(12).reshape(2, 3, 2) % 5
    total = torch.ones((), dtype=dtype)

    def nll(weight: Any, reduction: int, ignore: int) -> list[Any]:
        loss, weights = A.nll_loss_forward(logs, label, weight, reduction, ignore)
        back = A.nll_loss_backward(loss, logs, label, weight, reduction, ignore, total * 3)
        two = A.nll_loss2d_forward(plane, spots, weight, reduction, ignore)
        last = A.nll_loss2d_backward(two[0], plane, spots, weight, reduction, ignore, total * 3)
        return [loss, weights, back, *two, last]

    path, labels = r(6, 2, 5).log_softmax(2), torch.tensor([[1, 2], [3, 3]])
    lengths = [6, 6], [2, 2]

    def ctc(*lengths: Any) -> list[Any]:
        loss, alpha = A._ctc_loss(path, labels, *lengths, 4, True)
        back = A._ctc_loss_backward(x[:2, 0], path, labels, *lengths, loss, alpha, 4, True)
        return [loss, alpha, back]

    return [
        ("ctc_loss", lambda: ctc(*lengths)),
        ("ctc_loss of tensors", lambda: ctc(*(torch.tensor(v) for v in lengths))),
        ("ctc_loss called", lambda: F.ctc_loss(path, labels, *lengths)),
        ("sum", lambda: [x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), A.sum.dim_IntList(x, [0], True)]),
        ("amax", lambda: [x.amax(), x.amax(1, True), A.amax(x, [0]), A.amin(x, [1], True), x.amin()]),
        ("prod", lambda: [x.prod(), A.prod(x), x.prod(1), A.prod.dim_int(x, 0, True)]),
        ("norms", lambda: [A.linalg_vector_norm(x, p, d, True) for p in (1, 2.0) for d in (None, [1])]),
        ("norm", lambda: [torch.linalg.vector_norm(x), x.norm(), x.norm(1, 1), x.norm(float("inf"))]),
        ("mse_loss", lambda: [A.mse_loss(x, t, m) for m in range(3)]),
        ("mse_loss backward", lambda: [A.mse_loss_backward(g, x, t, m) for m, g in ((0, x), (1, one))]),
        ("smooth_l1_loss", lambda: [A.smooth_l1_loss(x, t, m, 0.5) for m in range(3)]),
        ("huber_loss", lambda: [A.huber_loss(x, t, m, 0.5) for m in range(3)]),
        ("losses", lambda: [f(x, t) for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss)]),
        ("nll_loss", lambda: nll(None, 1, -100) + nll(w, 2, 4) + nll(w, 0, 1)),
        ("embedding", lambda: [F.embedding(spots, x.T.contiguous()), A.index_select(x, 0, label % 4)]),
        (
            "embedding backward",
            lambda: [A.embedding_dense_backward(x, label, 6, p, f) for p in (-1, 2) for f in (False, True)],
        ),
    ]
