"""Studies of the Hierarchical Planner: learning curves, groupings, tables of Mirhoseini et al. 2018."""
