"""This process and its children: signals, logs, start-up time, memory and CPU settings."""
