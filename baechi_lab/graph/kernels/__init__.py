"""What compiled kernels share: compiling itself, sparse rows, heaps."""
