"""Evidence: commands that measure, and their stored results. Notebooks and tests read it, the package never does."""
