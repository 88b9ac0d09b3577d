"""Measurements: the sweep over replicas, the rates of the input, its stages, and of a model."""
