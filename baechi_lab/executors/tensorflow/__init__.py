"""Runs placed steps with TensorFlow: in a worker process, on a cluster of TensorFlow servers, or in place."""
