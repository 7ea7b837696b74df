"""The linear program of small communication times: its model, reductions, solver, and the favourites that it gives."""
