"""Measures the rates of the input pipeline and the model; plans and reports scaling sweeps."""
