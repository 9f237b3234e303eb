"""The engines/cpu layer: see docs/design.md."""
