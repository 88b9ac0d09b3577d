"""Selects the devices, the numbers of threads and the distribution strategy of a run."""
