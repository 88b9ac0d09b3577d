"""Manages this process and its child processes: signals, logs, start-up, memory, CPU settings."""
