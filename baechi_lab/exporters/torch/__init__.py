"""A placed PyTorch step -> a folder with a training script."""
