"""The published workloads: their flagfiles and figures."""
