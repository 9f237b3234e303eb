"""The runtime layer: see docs/design.md."""
