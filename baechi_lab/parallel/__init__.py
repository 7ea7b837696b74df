"""Layouts: how tensors, layers, experts, sequences and batches of a transformer are divided over devices."""
