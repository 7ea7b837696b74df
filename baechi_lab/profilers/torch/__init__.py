"""PyTorch: turns a model and its inputs into a graph of layers or operators with costs."""
