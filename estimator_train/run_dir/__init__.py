"""Reads, writes and locks the directory of a run, and translates disk errors."""
