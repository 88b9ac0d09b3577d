"""The directory of a run: its files, its lock, and disk errors."""
