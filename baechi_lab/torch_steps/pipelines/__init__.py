"""Pipelines of PyTorch models: a model's calls as a straight program, its stages, and what runs one on several devices."""
