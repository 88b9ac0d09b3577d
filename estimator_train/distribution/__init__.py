"""Devices, clusters and engines, by which several replicas and processes train together.

If a task of a cluster is killed, TensorFlow 1.15 makes the other tasks wait for the killed task
forever, inside C++ code. To detect this, the tasks connect to the chief before TensorFlow starts,
and keep these connections until the end of the run.
"""
