"""The tasks of a cluster: TF_CONFIG, the rendezvous at start, and heartbeats.

In TensorFlow 1.15 the survivors of a killed task wait forever, inside C++. The tasks therefore keep
connections of their own, from a rendezvous before TensorFlow starts until the end of the run.
"""
