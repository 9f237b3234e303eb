"""Sets of problems written out as lines: reductions, losses with rows by index."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["SETS"]

#: Rows and columns: tiny, small, large.
_SIZES = ((64, 100), (512, 1000), (2048, 4096))


def _reductions(dtype: str) -> Iterator[tuple[str, str, str]]:
    for m, n in _SIZES:
        for mode in ("add", "mean", "mul", "max", "amax", "norm1", "norm2"):
            for where, axes in (("all", "0x1"), ("inner", "1"), ("outer", "0")):
                yield f"{mode}:{where}:{m}x{n}", "fwd", f"reduction x={m}x{n}:{dtype} axes={axes} mode={mode}"


def _losses(dtype: str) -> Iterator[tuple[str, str, str]]:
    for m, n in _SIZES:
        x = f"{m}x{n}:{dtype}"
        for mode in ("mean", "none"):
            words = f"x={x} target={x} reduction={mode}"
            for op in ("mse_loss", "smooth_l1_loss", "huber_loss"):
                yield f"{op}:{mode}:{m}x{n}", "fwd", f"{op} {words}"
            dloss = f"scalar:{dtype}" if mode == "mean" else x
            back = f"mse_loss_backward dloss={dloss} {words} -> dx"
            yield f"mse_loss:{mode}:{m}x{n}", "bwd", back
        for name, dims, rest in ((f"{m}x{n}", f"{m}x{n}", f"{m}"), (f"{m // 64}x21x{n}", "", "")):
            if not dims:
                dims, rest = f"{max(m // 64, 1)}x21x{n // 4}x4", f"{max(m // 64, 1)}x{n // 4}x4"
            at = f"target={rest}:i64"
            yield f"nll:{name}", "fwd", f"nll_loss x={dims}:{dtype} {at}"
            back = f"nll_loss_backward dloss=scalar:{dtype} {at} total=scalar:{dtype} size={dims}"
            yield f"nll:{name}", "bwd", back
    for rows, d, places in ((1000, 64, 64), (1000, 64, 4096), (30000, 512, 256), (30000, 512, 4096)):
        indices = f"indices={places}:i64"
        yield f"embedding:{rows}x{d}:{places}", "fwd", f"embedding weight={rows}x{d}:{dtype} {indices}"
        back = f"embedding_backward dy={places}x{d}:{dtype} {indices} size={rows}x{d}"
        yield f"embedding:{rows}x{d}:{places}", "bwd", back


SETS = {"reductions": _reductions, "losses": _losses}
