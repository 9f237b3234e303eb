"""Kernels of the row-wise and window engines: build functions in the vocabulary of vlug.codegen."""
