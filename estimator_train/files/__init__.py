"""Writes files atomically, and defines the paths of the package."""
