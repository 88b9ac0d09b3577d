"""Writes files atomically, and gives the paths of the package."""
