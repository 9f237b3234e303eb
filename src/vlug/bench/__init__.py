"""The bench layer: see docs/design.md."""
