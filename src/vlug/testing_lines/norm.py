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
    return f"batchnorm_backward dy={x} x={x} {scale} mean={c} inv_std={c} training={r.randint(0, 1)}"


LINES: dict[str, Line] = {
    n: partial(_norm, n) for n in ("batchnorm", "batchnorm_inference", "batchnorm_backward")
}
