"""Passes that trade time for memory: recomputation and offloading. They compare what they save by simulation."""
