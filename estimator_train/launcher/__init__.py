"""Starts clusters, and TensorBoard, on this machine."""
