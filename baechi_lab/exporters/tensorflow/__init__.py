"""Exports a placed TensorFlow step as a folder with a training script."""
