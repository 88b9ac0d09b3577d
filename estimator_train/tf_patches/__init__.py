"""Workarounds for defects of TensorFlow 1.15."""
