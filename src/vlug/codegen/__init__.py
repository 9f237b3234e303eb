"""The codegen layer: see docs/design.md."""
