"""Checks whether a step fits into memory, and simulates options that make it fit."""
