"""The tasks of a cluster: TF_CONFIG, the rendezvous at start, and heartbeats.

In TensorFlow 1.15, when a task is killed, the others wait for it forever, inside C++. This package
therefore keeps its own connections between the tasks, from a rendezvous before TensorFlow starts
until the end of the run.
"""
