"""Starts a cluster on this machine, or TensorBoard next to a run."""
