"""Symbols of the adapters' object: what it needs and what it exports."""

from __future__ import annotations

__all__ = ["BLOCK", "ENTRIES", "IMPORTS", "POOL"]

#: PyTorch's stable C functions that adapters call.
IMPORTS = (
    "aoti_torch_get_dtype", "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides",
    "aoti_torch_empty_strided", "aoti_torch_new_uninitialized_tensor", "aoti_torch_delete_tensor_object",
    "torch_get_const_data_ptr", "torch_get_mutable_data_ptr",
)  # fmt: skip
#: Those of its thread pool, which a plan's run is lent.
POOL = ("torch_parallel_for", "torch_get_num_threads")
#: Our control block (an address given at loading).
BLOCK = "vlug_torch_block"
#: Exported: addresses of the boxed adapter, then of the unboxed ones, by shape of signatures.
ENTRIES = "vlug_torch_entries"
