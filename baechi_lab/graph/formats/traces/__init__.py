"""Traces of steps that ran elsewhere, read as measured graphs: Chakra, Kineto, TensorFlow's RunMetadata and XPlane."""
