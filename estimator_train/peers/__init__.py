"""The other tasks of a cluster: waited for before TensorFlow starts, and watched after.

In TensorFlow 1.15 the survivors of a killed task wait for ever, inside of C++. So the tasks keep
connections of their own: `meet` makes them, and `Peers` tells over them who is lost.
"""

from estimator_train.peers.heartbeats import READY, TRAINED, TRAINING, Peers, end_now
from estimator_train.peers.meeting import meet

__all__ = ['READY', 'TRAINED', 'TRAINING', 'Peers', 'end_now', 'meet']
