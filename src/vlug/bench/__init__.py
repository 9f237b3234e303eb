"""Benchmarks: layers of well-known networks, ours against stock PyTorch in the same process."""
