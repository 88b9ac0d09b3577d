"""The directory of a run: its files and their names, its lock, and errors of its disk."""
