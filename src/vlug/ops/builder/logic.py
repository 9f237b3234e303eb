"""Builder methods of Graph: comparisons, logic, selection."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["LogicMethods"]


class LogicMethods(Base):
    """Comparisons, logic, selection."""

    def cmp_eq(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a = b (bool), broadcast."""
        y: Tensor = self.call("cmp_eq", a, b, **options)
        return y

    def cmp_neq(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a ≠ b (bool), broadcast."""
        y: Tensor = self.call("cmp_neq", a, b, **options)
        return y

    def cmp_gt(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a > b (bool), broadcast."""
        y: Tensor = self.call("cmp_gt", a, b, **options)
        return y

    def cmp_ge(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a ≥ b (bool), broadcast."""
        y: Tensor = self.call("cmp_ge", a, b, **options)
        return y

    def cmp_lt(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a < b (bool), broadcast."""
        y: Tensor = self.call("cmp_lt", a, b, **options)
        return y

    def cmp_le(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = whether a ≤ b (bool), broadcast."""
        y: Tensor = self.call("cmp_le", a, b, **options)
        return y

    def logical_and(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a and b (bool), broadcast."""
        y: Tensor = self.call("logical_and", a, b, **options)
        return y

    def logical_or(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a or b (bool), broadcast."""
        y: Tensor = self.call("logical_or", a, b, **options)
        return y

    def logical_not(self, x: Tensor, **options: Any) -> Tensor:
        """y = not x (bool)."""
        y: Tensor = self.call("logical_not", x, **options)
        return y

    def binary_select(self, a: Tensor, b: Tensor, mask: Tensor, **options: Any) -> Tensor:
        """y = a where the mask is true, else b; broadcast."""
        y: Tensor = self.call("binary_select", a, b, mask, **options)
        return y

    def gen_index(self, x: Tensor, *, axis: int = 0, dtype: str = "i64", **options: Any) -> Tensor:
        """y = the index along `axis` of each element of x."""
        y: Tensor = self.call("gen_index", x, axis=axis, dtype=dtype, **options)
        return y
