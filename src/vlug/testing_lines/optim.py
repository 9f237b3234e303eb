"""Random problem lines: steps of optimisers."""

from __future__ import annotations

import random
from functools import partial

from vlug.ops import OPERATIONS
from vlug.testing_lines.base import Line, dims, shape

__all__ = ["LINES"]


def _step(name: str, r: random.Random) -> str:
    """One parameter or several, all of which share the scalars but the step."""
    op = OPERATIONS[name]
    flags = {f: r.randint(0, 1) for f in op.fields()}
    optional = r.random() < 0.5 and not flags.get("first")
    ports = [p.rstrip("?") for p in op.inputs if not p.endswith("?") or optional]
    flags["nesterov"] = flags.get("nesterov", 0) and int(optional or flags.get("first", 0))
    full, scalars = [p for p in ports if p in FULL], [p for p in ports if p not in FULL]
    choices = [("f32", "f32"), ("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f64", "f64")]
    kind, state = r.choice(choices)
    words = " ".join(f"{n}={v}" for n, v in flags.items() if n in op.fields())
    count = r.choice(["f32", "f64"])
    clauses = []
    for i in range(r.choice([1, 1, 2, 3])):
        dim = dims(*shape(r))
        made = [f"{p}:{p}{i}={dim}:{state if p not in 'pg' else kind}" for p in full]
        kinds = {p: count if p == "step" else "f64" for p in scalars if p == "step" or not i}
        made += [f"{p}:{p}{i}=scalar:{d}" for p, d in kinds.items()]
        made += [f"{p}={p}0" for p in scalars if p != "step" and i]
        keep = ("next_buf",) if flags.get("first") else ()
        outs = [o.rstrip("?") for o in op.outputs if not o.endswith("?") or optional or o.rstrip("?") in keep]
        clauses.append(f"{name} {' '.join(made)} {words} -> {', '.join(f'{o}{i}' for o in outs)}")
    return "; ".join(clauses)


FULL = ("p", "g", "m", "v", "vmax", "buf")
LINES: dict[str, Line] = {n: partial(_step, n) for n in ("sgd_step", "adam_step")}
