"""The tasks of a cluster: who this process is, where the others are, and whether they are alive.

In TensorFlow 1.15 the survivors of a killed task wait for ever, inside of C++. So the tasks keep
connections of their own, from a rendezvous before TensorFlow starts to the end of the run.
"""
