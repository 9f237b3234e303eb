"""The engines layer: see docs/design.md."""
