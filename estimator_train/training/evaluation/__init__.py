"""Exact evaluation, during training and on its own."""
