"""The bottleneck of a run is found, and its share of the time is right, by a simulated clock."""

import functools
import itertools
import json
import threading

import own_models
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.inputs import synthetic
from estimator_train.training import run_hooks

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

STEPS, WARMUP_STEPS = 12, 5
# For a run that hangs.
DEADLINE_SECS = 300


class Clock:
  """A clock that only delays move on: what the machine takes for the rest does not count.

  The input begins a batch when all replicas wait for it. Earlier, its seconds would count into
  whatever the step before is doing at the time.
  """

  def __init__(self, num_replicas=1):
    # Far from the times of checkpoints, which are those of the machine.
    self.secs = 1e9
    self._num_replicas = num_replicas
    self._changed = threading.Condition()
    self._num_begun = self._num_batches = 0
    self._readings = itertools.cycle([self._begin, self])

  def __call__(self):
    return self.secs

  def timestamp(self):
    """Stands in for `tf.timestamp`: of each replica's beginning, then of its batch's arrival."""
    read = tf.numpy_function(next(self._readings), [], tf.float64)
    read.set_shape([])
    return read

  def _begin(self):
    with self._changed:
      self._num_begun += 1
      self._changed.notify_all()
      return self.secs

  def delay_input(self, secs, tensor):
    def wait(value):
      with self._changed:
        step = self._num_batches // self._num_replicas + 1
        self._num_batches += 1
        # What is prepared for steps after the last one would be waited for in vain.
        if step <= STEPS:
          assert self._changed.wait_for(lambda: self._num_begun >= step * self._num_replicas,
                                        DEADLINE_SECS)
          self.secs += secs
      return value

    return _in_graph(wait, tensor)

  def delay_model(self, secs, tensor):
    def wait(value):
      with self._changed:
        self.secs += secs
      return value

    return _in_graph(wait, tensor)


def _in_graph(function, tensor):
  passed = tf.numpy_function(function, [tensor], tensor.dtype)
  passed.set_shape(tensor.shape)
  return passed


class ModelDelay:
  """What `own_models.Wait` takes."""

  def __init__(self, clock, secs):
    self.apply = functools.partial(clock.delay_model, secs)


@pytest.fixture
def train(run_program, tmp_path, monkeypatch):
  """Trains a small network with delays, and returns the written figures."""
  def run(input_secs, model_secs, *arguments, clock):
    monkeypatch.setattr(tf, 'timestamp', clock.timestamp)
    monkeypatch.setattr(run_hooks, 'RecordSteps',
                        functools.partial(run_hooks.RecordSteps, clock=clock))
    monkeypatch.setattr(own_models.Wait, 'delay', ModelDelay(clock, model_secs))
    make_input_fn = synthetic.make_input_fn
    if input_secs:
      monkeypatch.setattr(synthetic, 'make_input_fn', lambda *given: lambda: make_input_fn(
          *given)().map(lambda images, labels: (clock.delay_input(input_secs, images), labels)))
    done = run_program(
        '--mode=train', '--dataset=synthetic', '--image_size=8,8', '--batch_size=4',
        '--model=own_models:slow', '--train_steps={}'.format(STEPS),
        '--throughput_warmup_steps={}'.format(WARMUP_STEPS), '--model_dir={}'.format(tmp_path),
        *arguments)
    assert done.code == 0, done.err
    return json.loads((tmp_path / 'throughput.json').read_text())

  return run


# A delay of the input occupies a thread until the step begins.
THREADS = '--inter_op_parallelism_threads=4'


@pytest.mark.parametrize('input_secs, model_secs, verdict', [
    pytest.param(0.75, 0.25, 'input-bound', id='slow input'),
    pytest.param(0., 1., 'compute-bound', id='slow model'),
    pytest.param(0.01, 0.99, 'compute-bound', id='hardly any wait'),
])
def test_shares(train, input_secs, model_secs, verdict):
  figures = train(input_secs, model_secs, '--distribution_strategy=off', THREADS, clock=Clock())
  assert figures['verdict'] == verdict
  assert figures['shares'] == pytest.approx(
      {'input': input_secs, 'compute': model_secs, 'between': 0.}, abs=1e-4)
  assert figures['examples_per_sec'] == pytest.approx(4)


def test_slow_input_of_two_replicas(train):
  """Each step takes two batches, one after the other, and its wait is the longer one."""
  figures = train(0.1, 0., '--num_cpu_replicas=2', THREADS, clock=Clock(num_replicas=2))
  assert figures['verdict'] == 'input-bound'
  assert figures['input_wait_secs']['p50'] == pytest.approx(0.2, abs=1e-4)
  assert figures['shares']['input'] == pytest.approx(1, abs=1e-4)


def test_one_thread_tells_the_time_before_it_computes(train):
  figures = train(0., 1., '--inter_op_parallelism_threads=1', clock=Clock())
  assert figures['verdict'] == 'compute-bound'
  assert figures['shares']['input'] == 0
