"""The public functions of the package, and their results."""
