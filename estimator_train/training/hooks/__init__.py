"""Contains the session hooks that measure, log and end the training."""
