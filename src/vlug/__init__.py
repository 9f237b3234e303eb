"""vlug: an open library of tuned deep-learning primitives."""

from vlug._version import __version__

__all__ = ["__version__"]
