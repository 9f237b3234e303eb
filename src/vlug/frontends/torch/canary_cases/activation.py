"""What the canary compares: activations."""

from __future__ import annotations

from typing import Any

from vlug.frontends.torch.canary_cases.base import Case, random

__all__ = ["cases"]

#: Arguments beside x that tell each number from the others.
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "elu": (0.5, 2, 0.25), "softplus": (2, 1.5), "leaky_relu": (0.25,), "hardtanh": (-0.25, 0.5),
}  # fmt: skip
_NAMES = (
    "sigmoid", "tanh", "gelu", "silu", "elu", "softplus", "hardswish", "hardsigmoid", "mish", "leaky_relu",
    "hardtanh",
)  # fmt: skip


def cases(dtype: Any) -> list[Case]:
    import torch

    A: Any = torch.ops.aten
    r = random(dtype)
    x, dy, w = r(2, 4, 9, 8), r(2, 4, 9, 8), r(4)
    modules = (torch._C._nn, torch)

    def forward(name: str, numbers: tuple[Any, ...]) -> Any:
        """As C++ and as the interpreter calls; plainly and in place."""
        direct = next(getattr(m, name) for m in modules if hasattr(m, name))
        made = [f(x, *numbers) for f in (direct, getattr(A, name))]
        if name != "softplus":
            inside = next(getattr(m, f"{name}_") for m in modules if hasattr(m, f"{name}_"))
            made += [f(x.clone(), *numbers) for f in (inside, getattr(A, f"{name}_"))]
        return made

    def backward(name: str, numbers: tuple[Any, ...]) -> Any:
        f = getattr(A, f"{name}_backward")
        if name == "elu":
            return [f(dy, *numbers, result, x.abs()) for result in (False, True)]
        return f(dy, x, *numbers, *([False] if name == "leaky_relu" else []))

    def slope(name: str, numbers: tuple[Any, ...]) -> Any:
        """The gradient's C++ entry."""
        t = x.detach().requires_grad_()
        direct = next(getattr(m, name) for m in modules if hasattr(m, name))
        return torch.autograd.grad(direct(t, *numbers), t, dy)

    def gelu(approximate: str) -> Any:
        t = x.detach().requires_grad_()
        y = torch._C._nn.gelu(t, approximate=approximate)
        return [
            y, torch.autograd.grad(y, t, dy), A.gelu(x, approximate=approximate),
            A.gelu_backward(dy, x, approximate=approximate), A.gelu_(x.clone(), approximate=approximate),
        ]  # fmt: skip

    def prelu(weight: Any) -> Any:
        t, v = x.detach().requires_grad_(), weight.detach().requires_grad_()
        shaped = weight.reshape(1, -1, 1, 1)
        return [
            torch.autograd.grad(torch.prelu(t, v), (t, v), dy), A._prelu_kernel(x, shaped),
            A._prelu_kernel_backward(dy, x, shaped),
        ]  # fmt: skip

    return [
        *((name, lambda n=name: forward(n, _NUMBERS.get(n, ()))) for name in _NAMES),
        *((f"{name}_backward", lambda n=name: backward(n, _NUMBERS.get(n, ()))) for name in _NAMES),
        *((f"{name}, gradient", lambda n=name: slope(n, _NUMBERS.get(n, ()))) for name in _NAMES),
        *((f"gelu, {a}", lambda a=a: gelu(a)) for a in ("none", "tanh", "else")),
        *((f"prelu, {v.numel()}", lambda v=v: prelu(v)) for v in (w, w[:1])),
    ]
