"""Parts of the Hierarchical Planner (Mirhoseini et al. 2018): embeddings, groupings, networks, rewards, REINFORCE, files."""
