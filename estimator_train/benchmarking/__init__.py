"""Measurements: the scaling sweep, and the rates of the input pipeline and of the model."""
