"""The linear programme of small communication times, its reductions, its solver and the favourites it names."""
