"""Checkpoints that can be gone on with: on other devices, under other flags."""

import itertools
import time
import types

import pytest
import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.errors import TrainingFailed
from estimator_train.settings import Settings
from estimator_train.tf_patches import checkpoint_hook
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.checkpoints.retrying_saver import RetryingSaver
from estimator_train.training.hooks.step_counter import StepCounter


@pytest.fixture
def train(tmp_path):
  """Trains a little and returns the global step; into the same folder each time."""
  def run(steps, **values):
    settings = Settings(**dict(
        {'mode': 'train', 'dataset': 'synthetic', 'image_size': (18, 18), 'batch_size': 12,
         'model': 'own_models:two_layers'}, model_dir=str(tmp_path), train_steps=steps, **values))
    return training_runs.train(settings)[1].timing.global_step

  return run


def stored(folder):
  path, _ = save_hook.latest_checkpoint_and_step(str(folder))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


@pytest.mark.parametrize('before, after', [(1, 2), (2, 1), (3, 2)])
def test_resumes_on_another_number_of_replicas(train, tmp_path, before, after):
  assert train(2, num_cpu_replicas=before) == 2
  assert not [name for name in stored(tmp_path) if 'replica' in name]
  assert train(4, num_cpu_replicas=after) == 4


@pytest.mark.parametrize('before, after', [('off', 'mirrored'), ('mirrored', 'one_device')])
def test_resumes_under_another_strategy(train, before, after):
  assert train(2, distribution_strategy=before) == 2
  assert train(4, distribution_strategy=after) == 4


def test_learning_rate_of_the_flags_stands(train, tmp_path):
  train(1, learning_rate=0.5, optimizer='sgd')
  before = stored(tmp_path)
  train(2, learning_rate=1e-20, optimizer='sgd')
  assert (stored(tmp_path)['dense/kernel'] == before['dense/kernel']).all()


def test_timed_checkpoints_while_the_clock_is_set_back(train, tmp_path, monkeypatch):
  seconds = itertools.count(step=10)
  monkeypatch.setattr(checkpoint_hook, 'time', types.SimpleNamespace(
      monotonic=lambda: next(seconds)))
  monkeypatch.setattr(time, 'time', lambda: 1e9 - next(seconds))
  train(3, save_checkpoints_secs=10)
  assert len(list(tmp_path.glob('model.ckpt-*.index'))) == 4


def test_keeps_so_many(train, tmp_path):
  train(6, save_checkpoints_steps=1, keep_checkpoint_max=2)
  kept = sorted(path.name for path in tmp_path.glob('model.ckpt-*.index'))
  assert kept == ['model.ckpt-5.index', 'model.ckpt-6.index']


def test_keeps_so_many_after_a_resume_that_finds_more(train, tmp_path):
  train(5, save_checkpoints_steps=1)
  (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-5"\n')
  train(7, save_checkpoints_steps=1, keep_checkpoint_max=2)
  assert {path.name.partition('.')[2].partition('.')[0] for path in tmp_path.glob('model.*')} == {
      'ckpt-6', 'ckpt-7'}


def test_saves_at_the_same_multiples_after_a_resume(train, tmp_path):
  train(3)
  train(9, save_checkpoints_steps=4, keep_checkpoint_max=10)
  kept = {int(path.stem.rpartition('-')[2]) for path in tmp_path.glob('model.ckpt-*.index')}
  assert kept == {0, 3, 4, 8, 9}


def test_left_over_initial_weights_do_not_win(train, tmp_path):
  train(1, learning_rate=1e-20, optimizer='sgd')
  first = stored(tmp_path)['dense/kernel']
  for path in list(tmp_path.glob('model.ckpt-*')) + [tmp_path / 'checkpoint']:
    path.unlink()
  assert (tmp_path / 'keras').is_dir()
  train(1, learning_rate=1e-20, optimizer='sgd', seed=7)
  assert not (stored(tmp_path)['dense/kernel'] == first).all()


@pytest.mark.parametrize('called_at, saved, called', [
    (0, [0, 5, 10, 15, 20, 25], [10, 20]),
    pytest.param(10, [10, 15, 20], [20], id='after one that was done'),
    pytest.param(9, [10, 15, 20], [10, 20], id='after one that was not'),
    pytest.param(0, [0, 7, 14, 19, 23, 28, 31], [14, 23], id='other workers step too'),
])
def test_what_is_due_every_so_many_steps(called_at, saved, called):
  found = []
  listener = save_hook.CallEveryNSteps(10, called_at, 30, lambda: found.append(step))
  for step in saved:
    listener.after_save(None, step)
  assert found == called and len(listener.pauses) == len(called)


@pytest.fixture
def events(monkeypatch):
  """What happens in a training: `step`, when its first hook sees the end of one, and `graph`."""
  found = []
  count, write = StepCounter.after_run, RetryingSaver.save_graph

  def count_and_record(*args):
    found.append('step')
    count(*args)

  def write_and_record(*args):
    found.append('graph')
    write(*args)

  monkeypatch.setattr(StepCounter, 'after_run', count_and_record)
  monkeypatch.setattr(RetryingSaver, 'save_graph', write_and_record)
  return found


def has_graphs(folder):
  """Returns whether the first checkpoint and the event file have the graph."""
  event_file, = folder.glob('events.*')
  # The event file begins with an empty graph.
  in_events = sum(bool(tf.GraphDef.FromString(event.graph_def).node)
                  for event in tf.train.summary_iterator(str(event_file)))
  return (folder / 'model.ckpt-0.meta').exists() and in_events == 1


def test_the_graph_is_written_after_the_first_step(train, tmp_path, events):
  train(1)
  assert events == ['step', 'graph', 'graph']  # Of the first and the last checkpoint.
  assert has_graphs(tmp_path)


def test_the_graph_is_written_although_the_first_step_fails(train, tmp_path, monkeypatch):
  def fail(*unused_args):
    raise TrainingFailed('failed')

  monkeypatch.setattr(StepCounter, 'after_run', fail)
  with pytest.raises(TrainingFailed):
    train(2)
  assert has_graphs(tmp_path)
