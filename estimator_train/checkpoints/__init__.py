"""Finds, compares, saves and restores checkpoints."""
