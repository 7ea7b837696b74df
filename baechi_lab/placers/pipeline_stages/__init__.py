"""Algorithms for pipeline stages: units of a graph, device chains, dynamic programs, measured cuts."""
