"""A PyTorch training step (`TorchStep`), its trace, and the assignment of its calls to devices."""
