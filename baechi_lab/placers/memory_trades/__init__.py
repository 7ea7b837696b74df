"""Placements that save memory at the cost of time: they recompute values, or offload them to a host."""
