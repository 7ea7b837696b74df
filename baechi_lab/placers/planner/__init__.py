"""The parts of the Hierarchical Planner (paper H): embeddings, groupings, networks, rewards, REINFORCE, checkpoints."""
