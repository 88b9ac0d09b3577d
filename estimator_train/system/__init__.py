"""Controls this process, starts others, and writes files atomically."""
