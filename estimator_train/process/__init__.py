"""Runs child processes, and controls signals, logs, memory and CPU settings of this process."""
