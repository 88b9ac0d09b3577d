"""Evaluates checkpoints, counting each test example exactly once."""
