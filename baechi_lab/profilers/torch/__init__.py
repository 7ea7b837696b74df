"""PyTorch: a model and its inputs -> a graph of layers with measured costs."""
