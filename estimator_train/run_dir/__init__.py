"""Reads, writes and locks the folder of a run, and translates disk and memory errors."""
