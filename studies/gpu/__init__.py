"""Kernels, layers and whole models on an attached GPU, against what the estimates say of them."""
