"""Random problem lines of every operation, from a seed: small, valid, odd sizes more often than round."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from vlug.ops import OPERATIONS
from vlug.tensor import Tensor

__all__ = ["LINES"]


@dataclass(frozen=True)
class _Window:
    """Spatial dims, window and the attributes of one random sliding window (a value a dimension)."""

    size: list[int]
    window: list[int]
    pre: list[int]
    post: list[int]
    stride: list[int]
    dilation: list[int]

    def words(self, dilation: bool = True) -> str:
        parts = [("pad", self.pre), ("post", self.post), ("stride", self.stride)]
        if dilation:
            parts.append(("dilation", self.dilation))
        return " ".join(f"{k}={_dims(*v)}" for k, v in parts)


def _dims(*d: int) -> str:
    return "x".join(map(str, d)) if d else "scalar"


def _window(r: random.Random, rank: int, pool: bool) -> _Window:
    w = _Window([], [], [], [], [], [])
    for _ in range(rank):
        window, dilation = r.choice([1, 1, 2, 3, 3, 4, 5]), r.choice([1, 1, 1, 2, 3])
        extent = (window - 1) * dilation + 1
        most = extent // 2 if pool else extent
        pre, post = r.randint(0, most), r.randint(0, most)
        least = max(1, extent - pre - post)
        w.size.append(r.randint(least, least + 9))
        w.window.append(window)
        w.dilation.append(dilation)
        w.pre.append(pre)
        w.post.append(post)
        w.stride.append(r.choice([1, 1, 1, 2, 3]))
    return w


def _conv(direction: str, seed: int) -> str:
    r = random.Random(seed)
    w = _window(r, r.choice([1, 2, 2, 2, 2, 2, 3]), False)
    groups = r.choice([1, 1, 1, 2, 3, 5])
    n, c, k = r.choice([0, 1, 2, 3]), r.choice([0, 1, 1, 3, 5, 8, 17]), r.choice([0, 1, 2, 3, 7])
    if groups > 3:
        c = 1
    x, weight = _dims(n, c * groups, *w.size), _dims(k * groups, c, *w.window)
    tail = f"{w.words()} groups={groups}"
    if direction == "fprop":
        return f"conv_fprop x={x} w={weight} {tail}"
    ins = (Tensor.parse(x), Tensor.parse(weight))
    op = OPERATIONS["conv_fprop"].from_attributes(dict(t.split("=") for t in tail.split()), ins)
    y = _dims(*op.infer(*ins)[0].dim)
    if direction == "dgrad":
        return f"conv_dgrad dy={y} w={weight} {tail} size={_dims(*w.size)}"
    return f"conv_wgrad dy={y} x={x} {tail} size={_dims(*w.window)}"


def _matmul(seed: int) -> str:
    r = random.Random(seed)
    m, n, k = (r.choice([0, 1, 2, 5, 16, 17, 33]) for _ in range(3))
    lead = [r.randint(1, 3) for _ in range(r.randint(0, 2))]
    both = [[1 if r.random() < 0.3 else d for d in lead[r.randint(0, len(lead)) :]] for _ in "ab"]
    ta, tb = r.random() < 0.5, r.random() < 0.5
    a = _dims(*both[0], *((k, m) if ta else (m, k)))
    b = _dims(*both[1], *((n, k) if tb else (k, n)))
    return f"matmul a={a} b={b} transpose_a={int(ta)} transpose_b={int(tb)}"


def _shape(r: random.Random, least: int = 0) -> list[int]:
    return [r.choice([0, 1, 2, 3, 5, 7, 17]) for _ in range(r.randint(least, 4))]


def _binary(name: str, seed: int) -> str:
    r = random.Random(seed)
    dim = _shape(r)
    a, b = ([1 if r.random() < 0.3 else d for d in dim[r.randint(0, len(dim)) :]] for _ in "ab")
    return f"{name} a={_dims(*a)} b={_dims(*b)}"


def _bias(seed: int) -> str:
    r = random.Random(seed)
    dim = _shape(r, 1)
    axis = r.randrange(len(dim))
    return f"bias x={_dims(*dim)} b={dim[axis]} axis={axis}"


def _relu(name: str, seed: int) -> str:
    r = random.Random(seed)
    x = _dims(*_shape(r))
    tail = r.choice(["", "negative_slope=0.1", "upper_clip=1.5", "lower_clip=-1.0", "negative_slope=-0.5"])
    return f"{name} {f'dy={x} ' if name != 'relu' else ''}x={x} {tail}"


def _pool(name: str, seed: int) -> str:
    r = random.Random(seed)
    w = _window(r, r.choice([1, 2, 2, 2, 3]), True)
    is_max = name.startswith("max")
    if not is_max:
        pre, post = ([min(p, d // 2) for p, d in zip(pads, w.window)] for pads in (w.pre, w.post))
        w = replace(w, pre=pre, post=post, dilation=[1] * len(w.size))
        w.size[:] = [max(s, d) for s, d in zip(w.size, w.window)]
    n, c = r.choice([0, 1, 2]), r.choice([0, 1, 3, 5, 17])
    x, ceil = _dims(n, c, *w.size), r.random() < 0.3
    words = f"window={_dims(*w.window)} {w.words(dilation=is_max)}"
    more = "" if is_max else r.choice(["", " count_include_pad=0", " divisor=3"])
    full = f"{words} ceil={int(ceil)}{more}"
    forward = name.removesuffix("_backward")
    if forward == name:
        return f"{name} x={x} {full}"
    t = Tensor.parse(x)
    op = OPERATIONS[forward].from_attributes(dict(p.split("=") for p in full.split()), (t,))
    y, size = _dims(*op.infer(t)[0].dim), _dims(*w.size)
    if is_max:
        return f"{name} dy={y} index={y}:i64 {words} size={size}"
    return f"{name} dy={y} {full} size={size}"


def _norm(name: str, seed: int) -> str:
    r = random.Random(seed)
    dim = [r.choice([0, 1, 2, 3]), r.choice([0, 1, 2, 5, 17, 35]), *_shape(r)[:3]]
    x, c = _dims(*dim), dim[1]
    maybe = [f"{p}={c}" for p in ("scale", "bias") if r.random() < 0.7]
    if name == "batchnorm":
        running = f"running_mean={c} running_var={c}" if r.random() < 0.7 else ""
        return f"batchnorm x={x} {' '.join(maybe)} {running} unbiased={r.randint(0, 1)} momentum=0.3"
    if name == "batchnorm_inference":
        return f"batchnorm_inference x={x} mean={c} var={c} {' '.join(maybe)}"
    scale = maybe[0] if maybe and maybe[0].startswith("scale") else ""
    return f"batchnorm_backward dy={x} x={x} {scale} mean={c} inv_std={c} training={r.randint(0, 1)}"


def _softmax(name: str, seed: int) -> str:
    r = random.Random(seed)
    dim = _shape(r, 1)
    x = _dims(*dim)
    ports = " ".join(f"{p}={x}" for p in OPERATIONS[name].inputs)
    return f"{name} {ports} axis={r.randrange(-len(dim), len(dim))}"


def _cross_entropy(name: str, seed: int) -> str:
    r = random.Random(seed)
    n, c, rest = r.randint(0, 5), r.randint(1, 9), _shape(r)[:2]
    mode = r.choice(["mean", "sum", "none"])
    target = _dims(n, *rest)
    words = [f"x={_dims(n, c, *rest)} target={target}:i64"]
    if r.random() < 0.5:
        words.append(f"weight={c}")
    words.append(
        f"reduction={mode} label_smoothing={r.choice([0.0, 0.1])} ignore_index={r.choice([-100, 0])}"
    )
    if name.endswith("_backward"):
        words.insert(0, f"dloss={target if mode == 'none' else 'scalar'}")
    return f"{name} {' '.join(words)}"


def _reduction(name: str, seed: int) -> str:
    r = random.Random(seed)
    dim = _shape(r, 1)
    axes = sorted(r.sample(range(len(dim)), r.randint(1, len(dim))))
    keep, mode = r.randint(0, 1), r.choice(["add", "mean"])
    tail = f"axes={_dims(*axes)} keepdim={keep} mode={mode}"
    if name == "reduction":
        return f"reduction x={_dims(*dim)} {tail}"
    y = [1 if i in axes else d for i, d in enumerate(dim) if keep or i not in axes]
    return f"reduction_backward dy={_dims(*y)} {tail} size={_dims(*dim)}"


#: Operation name → a problem line for each seed.
LINES: dict[str, Callable[[int], str]] = {
    **{f"conv_{d}": partial(_conv, d) for d in ("fprop", "dgrad", "wgrad")},
    "matmul": _matmul,
    "bias": _bias,
    **{n: partial(_binary, n) for n in ("add", "mul")},
    **{n: partial(_relu, n) for n in ("relu", "relu_backward")},
    **{n: partial(_pool, n) for n in ("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")},
    **{n: partial(_norm, n) for n in ("batchnorm", "batchnorm_inference", "batchnorm_backward")},
    **{
        n: partial(_softmax, n)
        for n in ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")
    },
    **{n: partial(_cross_entropy, n) for n in ("cross_entropy", "cross_entropy_backward")},
    **{n: partial(_reduction, n) for n in ("reduction", "reduction_backward")},
}
