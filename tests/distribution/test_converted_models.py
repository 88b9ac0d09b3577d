"""`convert` and TimeHistory in the tasks of a cluster, with strategies of TensorFlow."""

import json

import pytest

pytestmark = pytest.mark.cluster

SCRIPT = '''
import functools, json, sys
import numpy as np
import tensorflow as tf
from tensorflow.python.training.session_manager import SessionManager
import estimator_train

# By default, a worker looks for the variables of the chief every 30 s.
SessionManager.__init__ = functools.partialmethod(SessionManager.__init__, recovery_wait_secs=1)

model_dir, strategy = sys.argv[1:]
numbers = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
classes = (numbers[:, 0] > 0).astype(np.int32)
model = tf.keras.Sequential([
    tf.keras.layers.BatchNormalization(input_shape=(4,)),
    tf.keras.layers.Dense(2, activation='softmax', name='classes')])
model.compile(tf.keras.optimizers.SGD(.1), 'sparse_categorical_crossentropy')
config = tf.estimator.RunConfig(
    train_distribute=getattr(tf.distribute.experimental, strategy)())
history = estimator_train.TimeHistory(32, report_dir=model_dir, warmup_steps=0)

def make_input():
  return tf.data.Dataset.from_tensor_slices((numbers, classes)).repeat().batch(16)

tf.estimator.train_and_evaluate(
    estimator_train.convert(model, model_dir=model_dir, config=config),
    tf.estimator.TrainSpec(make_input, 30, [history]), tf.estimator.EvalSpec(make_input, steps=2))
print(json.dumps(history.report()))
'''


@pytest.mark.slow
@pytest.mark.parametrize('strategy, counts, replicas', [
    ('MultiWorkerMirroredStrategy', {'chief': 1, 'worker': 1}, 2),
    ('ParameterServerStrategy', {'chief': 1, 'worker': 1, 'ps': 1}, 1)])
def test_a_converted_model_in_a_cluster(cluster, tmp_path, strategy, counts, replicas):
  tasks = cluster.start([str(tmp_path / 'run'), strategy], program=('-c', SCRIPT), **counts)
  for name in ('chief 0', 'worker 0'):  # A parameter server never ends.
    assert tasks[name].code() == 0, tasks[name].log
    report = tasks[name].result
    assert (report['num_replicas'], report['num_workers']) == (replicas, 2)
    assert report['steps_timed'] > 0 and report['shares']['input'] is not None
  written = json.loads((tmp_path / 'run' / 'throughput.json').read_text())
  assert written == tasks['chief 0'].result  # Only the chief writes.
  assert written['global_step'] >= 30
