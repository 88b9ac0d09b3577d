"""Saves, selects and compares checkpoints, and recovers from damaged checkpoints."""
