"""Random problem lines: normalisation."""

from __future__ import annotations

import random
from functools import partial

from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _norm(name: str, r: random.Random) -> str:
    dim = [r.choice([0, 1, 2, 3]), r.choice([0, 1, 2, 5, 17, 35]), *shape(r)[:3]]
    x, c = dims(*dim), dim[1]
    maybe = [f"{p}={c}" for p in ("scale", "bias") if r.random() < 0.7]
    if name == "batchnorm":
        running = f"running_mean={c} running_var={c}" if r.random() < 0.7 else ""
        return f"batchnorm x={x} {' '.join(maybe)} {running} unbiased={r.randint(0, 1)} momentum=0.3"
    if name == "batchnorm_inference":
        return f"batchnorm_inference x={x} mean={c} var={c} {' '.join(maybe)}"
    scale = maybe[0] if maybe and maybe[0].startswith("scale") else ""
    if name == "batchnorm_inference_backward":
        return f"{name} dy={x} x={x} {scale} mean={c} var={c}"
    return f"batchnorm_backward dy={x} x={x} {scale} mean={c} inv_std={c} training={r.randint(0, 1)}"


def _row_norm(name: str, r: random.Random) -> str:
    dim = [r.choice([0, 1, 2, 5, 17, 40]), *shape(r)[:3]]
    dim[-1] = r.choice([0, 1, 3, 16, 33, 77, 200, dim[-1]])
    axis = r.randrange(len(dim))
    x, row, stat = dims(*dim), dims(*dim[axis:]), dims(*dim[:axis], *[1] * (len(dim) - axis))
    scale = f"scale={row}" if r.random() < 0.7 else ""
    if name.endswith("_backward"):
        mean = f"mean={stat}" if name.startswith("layernorm") else ""
        return f"{name} dy={x} x={x} {scale} {mean} inv_std={stat} axis={axis}"
    bias = f"bias={row}" if r.random() < 0.7 else ""
    return f"{name} x={x} {scale} {bias} axis={axis} eps={r.choice([1e-12, 1e-5, 0.1])}"


def _group_norm(name: str, r: random.Random) -> str:
    groups, size = r.choice([1, 2, 3, 8]), r.choice([1, 2, 5, 16])
    if name.startswith("instance"):
        groups, size = groups * size, 1
    dim = [r.choice([0, 1, 2, 3]), groups * size, *shape(r)[:3]]
    x, c = dims(*dim), dim[1]
    tail = f"groups={groups}" if name.startswith("group") else ""
    scale = f"scale={c}" if r.random() < 0.7 else ""
    if name.endswith("_backward"):
        stat = dims(dim[0], groups, *[1] * (0 if tail else len(dim) - 2))
        return f"{name} dy={x} x={x} {scale} mean={stat} inv_std={stat} {tail}"
    bias = f"bias={c}" if r.random() < 0.7 else ""
    return f"{name} x={x} {scale} {bias} {tail} eps={r.choice([1e-5, 0.1])}"


_BATCH = ("batchnorm", "batchnorm_inference", "batchnorm_backward", "batchnorm_inference_backward")
_GROUPS = ("groupnorm", "groupnorm_backward", "instancenorm", "instancenorm_backward")
_ROWS = ("layernorm", "layernorm_backward", "rmsnorm", "rmsnorm_backward")
_FAMILIES = ((_BATCH, _norm), (_ROWS, _row_norm), (_GROUPS, _group_norm))
LINES: dict[str, Line] = {n: partial(draw, n) for names, draw in _FAMILIES for n in names}
