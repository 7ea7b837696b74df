"""Memory of plans: packing of groups, verification, repair, and orders that need less memory."""
