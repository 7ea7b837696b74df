"""Measured kernels of GPUs: the constants of the kernel model fitted to them, and how far off it is where it was not fitted."""
