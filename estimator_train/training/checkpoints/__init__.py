"""Checkpoints: saving, selecting, comparing, and recovering from damaged ones."""
