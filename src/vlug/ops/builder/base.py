"""What builder methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.tensor import Tensor

__all__ = ["Base", "Ints", "paddings"]

Ints = int | Sequence[int]


class Base:
    """Builder methods are written over `call`."""

    def call(self, name: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        raise NotImplementedError


def paddings(both: Ints | None, pre: Ints | None, post: Ints | None) -> dict[str, Ints | None]:
    return {"pre_padding": both if pre is None else pre, "post_padding": both if post is None else post}
