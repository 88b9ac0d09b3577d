"""Session hooks, which measure, log and end the training."""
