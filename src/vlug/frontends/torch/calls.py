"""An operator of PyTorch, called with the arguments that a key holds (`keys.read_key`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vlug.frontends.torch.keys import Arg, Varying, VaryingList
from vlug.frontends.torch.operators import Operator

__all__ = ["bound", "dtype_of"]


def dtype_of(number: int) -> Any:
    """PyTorch's dtype with this number, of those that operations have."""
    import torch

    return {
        0: torch.uint8, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 7: torch.float64,
        11: torch.bool, 15: torch.bfloat16,
    }[number]  # fmt: skip


def bound(
    op: Operator, values: Sequence[Any], tensor: Callable[[Arg], Any],
    number: Callable[[Varying | VaryingList], Any],
) -> Callable[[], Any]:  # fmt: skip
    """The operator's call: `tensor` makes a tensor argument, `number` one, or a list, that is in no key."""
    import torch

    name, _, overload = op.name.partition(".")
    schema = torch._C._get_schema(f"aten::{name}", overload)

    def made(kind: str, v: Any) -> Any:
        if kind == "x":
            return False
        if kind in "NE":
            return [tensor(a) for a in (v if isinstance(v, tuple) else (v,)) if a is not None]
        if isinstance(v, Arg):
            return tensor(v)
        if isinstance(v, (Varying, VaryingList)):
            return number(v)
        return list(v) if isinstance(v, tuple) else v

    arguments = [(a, made(kind, v)) for a, kind, v in zip(schema.arguments, op.kinds, values)]
    plain = [v for a, v in arguments if not a.kwarg_only]
    named = {a.name: v for a, v in arguments if a.kwarg_only}
    call = getattr(getattr(torch.ops.aten, name), overload or "default")
    return lambda: call(*plain, **named)
