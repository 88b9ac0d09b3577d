"""Connects the tasks of a cluster to each other, and detects lost tasks.

If a task is killed, TensorFlow 1.15 makes the other tasks wait for the killed task forever, inside
C++ code. This package therefore connects the tasks to each other before TensorFlow starts, and
keeps these connections until the end of the run.
"""
