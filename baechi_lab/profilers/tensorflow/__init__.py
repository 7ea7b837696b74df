"""TensorFlow: a training step -> a traced step -> a graph with costs, measured or estimated."""
