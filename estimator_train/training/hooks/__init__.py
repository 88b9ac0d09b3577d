"""The hooks of a training session."""
