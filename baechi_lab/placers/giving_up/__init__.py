"""Placements of graphs that give up time for memory: what is computed again or held on a host is chosen with them."""
