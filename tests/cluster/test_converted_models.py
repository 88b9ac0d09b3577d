"""`convert` and TimeHistory in the tasks of a cluster, with strategies of TensorFlow."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from peer_helpers import free_ports

SECS = 120
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = '''
import json, sys
import numpy as np
import tensorflow as tf
import estimator_train

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


@pytest.mark.parametrize('strategy, types, replicas', [
    ('MultiWorkerMirroredStrategy', ['chief', 'worker'], 2),
    ('ParameterServerStrategy', ['chief', 'worker', 'ps'], 1)])
def test_a_converted_model_in_a_cluster(tmp_path, strategy, types, replicas):
  script = tmp_path / 'script.py'
  script.write_text(SCRIPT)
  cluster = {name: ['localhost:{}'.format(port)]
             for name, port in zip(types, free_ports(len(types)))}
  tasks = {name: subprocess.Popen(
      [sys.executable, '-W', 'ignore', str(script), str(tmp_path / 'run'), strategy],
      env=dict(os.environ, PYTHONPATH=str(ROOT), TF_CONFIG=json.dumps({
          'cluster': cluster, 'task': {'type': name, 'index': 0}})),
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True) for name in types}
  try:
    outputs = {name: tasks[name].communicate(timeout=SECS) for name in ('chief', 'worker')}
  finally:
    for task in tasks.values():
      task.kill()
      task.wait()
  for name, (out, err) in outputs.items():
    assert tasks[name].returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert (report['num_replicas'], report['num_workers']) == (replicas, 2)
    assert report['steps_timed'] > 0 and report['shares']['input'] is not None
  written = json.loads((tmp_path / 'run' / 'throughput.json').read_text())
  assert written == json.loads(outputs['chief'][0].splitlines()[-1])  # Only the chief writes.
  assert written['global_step'] >= 30
