"""Launchers: a cluster on this machine, and TensorBoard for a training run."""
