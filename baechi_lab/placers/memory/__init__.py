"""Memory as a promise: packing groups, feasibility, repair of placements, orders that need less."""
