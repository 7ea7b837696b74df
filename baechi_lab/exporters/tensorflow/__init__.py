"""A placed TensorFlow step -> a folder with a training script."""
