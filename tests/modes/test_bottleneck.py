"""A planted bottleneck is found, and its share of the time is right."""

import json
import time

import own_models
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.inputs import synthetic

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

# Long against what a busy machine adds to a step.
DELAY_SECS = 0.1
STEPS, WARMUP_STEPS = 25, 5


@pytest.fixture
def train(run_program, tmp_path):
  """Trains a small network on made-up images, and returns the written figures."""
  def run(model, *arguments):
    done = run_program(
        '--mode=train', '--dataset=synthetic', '--image_size=8,8', '--batch_size=4',
        '--model=own_models:' + model, '--train_steps={}'.format(STEPS),
        '--throughput_warmup_steps={}'.format(WARMUP_STEPS), '--model_dir={}'.format(tmp_path),
        *arguments)
    assert done.code == 0, done.err
    return json.loads((tmp_path / 'throughput.json').read_text())

  return run


class Delay:
  """Waits a while whenever a graph gets to it, and notes for how long it did."""

  def __init__(self):
    self.secs = []

  def apply(self, tensor):
    def wait(value):
      began = time.perf_counter()
      time.sleep(DELAY_SECS)
      self.secs.append(time.perf_counter() - began)
      return value

    waited = tf.numpy_function(wait, [tensor], tensor.dtype)
    waited.set_shape(tensor.shape)
    return waited

  def share(self, figures):
    """Returns the part of the timed steps' wall time that was spent here."""
    return sum(self.secs[WARMUP_STEPS:STEPS]) / figures['wall_secs']


@pytest.fixture
def slow_input(monkeypatch):
  delay, make_input_fn = Delay(), synthetic.make_input_fn

  def make_slow_input_fn(*arguments):
    input_fn = make_input_fn(*arguments)
    return lambda: input_fn().map(lambda images, labels: (delay.apply(images), labels))

  monkeypatch.setattr(synthetic, 'make_input_fn', make_slow_input_fn)
  return delay


def test_slow_input(train, slow_input):
  figures = train('two_layers', '--distribution_strategy=off')
  assert figures['verdict'] == 'input-bound'
  # What is waited for is this, less what the step before takes meanwhile.
  assert figures['shares']['input'] == pytest.approx(slow_input.share(figures), abs=0.25)
  assert sum(figures['shares'].values()) == pytest.approx(1)


def test_slow_input_of_two_replicas(train, slow_input):
  figures = train('two_layers', '--num_cpu_replicas=2')
  assert slow_input.secs and figures['verdict'] == 'input-bound'
  # Each step takes two batches, one after the other, and most of that must be waited for.
  assert figures['input_wait_secs']['p50'] > DELAY_SECS


def test_one_thread_tells_the_time_before_it_computes(train):
  figures = train('two_layers', '--model=fashion_cnn', '--image_size=28,28', '--batch_size=32',
                  '--inter_op_parallelism_threads=1')
  assert figures['verdict'] == 'compute-bound'


def test_slow_model(train, monkeypatch):
  delay = Delay()
  monkeypatch.setattr(own_models.Wait, 'delay', delay)
  figures = train('slow', '--distribution_strategy=off')
  assert figures['verdict'] == 'compute-bound'
  # All that a busy machine adds to the steps counts as theirs.
  assert delay.share(figures) - 0.05 < figures['shares']['compute'] <= 1
