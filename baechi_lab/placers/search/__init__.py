"""The placer `search`: annealing over units of ops, on coarse structures first, from several starts."""
