"""Graphs as nested boxes: which box an op lies in, where the boxes lie, and the picture as SVG."""
