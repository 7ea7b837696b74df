"""Helpers of compiled kernels: compilation, sparse rows, heaps."""
