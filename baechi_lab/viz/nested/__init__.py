"""Graphs as nested boxes: the box of every op, the positions of the boxes, and the picture as SVG."""
