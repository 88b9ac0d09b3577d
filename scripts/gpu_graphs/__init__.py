"""Checks graphs for GPUs on a machine without GPUs; see scripts/check_gpu_graphs.py."""
