"""The frontends layer: see docs/design.md."""
