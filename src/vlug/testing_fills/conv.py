"""Fills of convolutions."""

from __future__ import annotations

__all__ = ["EDGES"]

# Padding times inf is not defined (an engine may skip padding or multiply zeros), so wgrad gets edges in x
# alone and the convolutions not in w.
EDGES: dict[str, tuple[str, ...]] = {"conv_fprop": ("x",), "conv_dgrad": ("dy",), "conv_wgrad": ("x",)}
