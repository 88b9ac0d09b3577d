"""Checkpoints: found, saved, retained, recovered, compared."""
