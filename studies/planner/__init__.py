"""Studies of the Hierarchical Planner: learning curves, groupings, tables of paper H."""
