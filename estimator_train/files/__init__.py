"""Files: atomic writes, and the paths of the package."""
