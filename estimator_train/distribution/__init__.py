"""Devices, clusters and engines: how several replicas and processes train together.

If a task of a cluster is killed, TensorFlow 1.15 makes the other tasks wait for the killed task
forever, inside C++ code. The tasks therefore connect to the chief before TensorFlow starts, and
keep these connections until the end of the run.
"""
