"""Builder methods of Graph: pointwise arithmetic and elementary functions."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["ArithmeticMethods"]


class ArithmeticMethods(Base):
    """Pointwise arithmetic and elementary functions."""

    def sub(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a - b, broadcast."""
        y: Tensor = self.call("sub", a, b, **options)
        return y

    def div(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a / b, broadcast."""
        y: Tensor = self.call("div", a, b, **options)
        return y

    def mod(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = fmod(a, b): the remainder with the sign of a; broadcast."""
        y: Tensor = self.call("mod", a, b, **options)
        return y

    def pow(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a ^ b as C's pow, broadcast."""
        y: Tensor = self.call("pow", a, b, **options)
        return y

    def add_square(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a + b², broadcast."""
        y: Tensor = self.call("add_square", a, b, **options)
        return y

    def max(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = the larger of a and b (NaN if either is), broadcast."""
        y: Tensor = self.call("max", a, b, **options)
        return y

    def min(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = the smaller of a and b (NaN if either is), broadcast."""
        y: Tensor = self.call("min", a, b, **options)
        return y

    def neg(self, x: Tensor, **options: Any) -> Tensor:
        """y = -x."""
        y: Tensor = self.call("neg", x, **options)
        return y

    def abs(self, x: Tensor, **options: Any) -> Tensor:
        """y = |x|."""
        y: Tensor = self.call("abs", x, **options)
        return y

    def sign(self, x: Tensor, **options: Any) -> Tensor:
        """y = -1, 0 or 1; NaN of NaN."""
        y: Tensor = self.call("sign", x, **options)
        return y

    def reciprocal(self, x: Tensor, **options: Any) -> Tensor:
        """y = 1 / x."""
        y: Tensor = self.call("reciprocal", x, **options)
        return y

    def sqrt(self, x: Tensor, **options: Any) -> Tensor:
        """y = √x."""
        y: Tensor = self.call("sqrt", x, **options)
        return y

    def rsqrt(self, x: Tensor, **options: Any) -> Tensor:
        """y = 1 / √x."""
        y: Tensor = self.call("rsqrt", x, **options)
        return y

    def exp(self, x: Tensor, **options: Any) -> Tensor:
        """y = e^x."""
        y: Tensor = self.call("exp", x, **options)
        return y

    def log(self, x: Tensor, **options: Any) -> Tensor:
        """y = the natural logarithm of x."""
        y: Tensor = self.call("log", x, **options)
        return y

    def erf(self, x: Tensor, **options: Any) -> Tensor:
        """y = the error function of x."""
        y: Tensor = self.call("erf", x, **options)
        return y

    def sin(self, x: Tensor, **options: Any) -> Tensor:
        """y = sin x (radians)."""
        y: Tensor = self.call("sin", x, **options)
        return y

    def cos(self, x: Tensor, **options: Any) -> Tensor:
        """y = cos x (radians)."""
        y: Tensor = self.call("cos", x, **options)
        return y

    def tan(self, x: Tensor, **options: Any) -> Tensor:
        """y = tan x (radians)."""
        y: Tensor = self.call("tan", x, **options)
        return y

    def ceil(self, x: Tensor, **options: Any) -> Tensor:
        """y = the least integer not below x."""
        y: Tensor = self.call("ceil", x, **options)
        return y

    def floor(self, x: Tensor, **options: Any) -> Tensor:
        """y = the largest integer not above x."""
        y: Tensor = self.call("floor", x, **options)
        return y

    def affine(self, x: Tensor, *, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> Tensor:
        """y = alpha · x + beta."""
        y: Tensor = self.call("affine", x, alpha=float(alpha), beta=float(beta), **options)
        return y

    def identity(self, x: Tensor, *, dtype: str = "", **options: Any) -> Tensor:
        """y = x in another dtype ("": its own) or, by like=, layout."""
        y: Tensor = self.call("identity", x, dtype=dtype, **options)
        return y
