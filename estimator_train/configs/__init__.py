"""The published workloads: their flagfiles and their figures."""
