"""Paper B's experiments from the stored profiles: `python -m baechi_lab.experiments table3`, see notebooks 20 to 25."""
