"""Starts a cluster on this machine, or TensorBoard together with a training run."""
