"""Exports a placed PyTorch step to a folder with a training script."""
