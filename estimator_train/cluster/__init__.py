"""Connects the tasks of a cluster to each other, and detects lost tasks.

In TensorFlow 1.15, when a task is killed, the other tasks wait for the killed task forever, inside
C++. The tasks therefore keep additional connections to each other, from the rendezvous before
TensorFlow starts until the end of the run.
"""
