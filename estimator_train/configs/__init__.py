"""The flagfiles of the package, and the figures of the published workloads."""
