"""Checkpoints that can be gone on with: on other devices, under other flags."""

import itertools
import time
import types

import pytest
import training_runs

from estimator_train.checkpoints import finding
from estimator_train.tf_patches import checkpoints


@pytest.fixture
def train(tmp_path):
  """Trains a little and returns the checkpoint; into the same folder each time."""
  def run(steps, **values):
    _, outcome = training_runs.train(tmp_path, dataset='synthetic', image_size=(18, 18),
                                     batch_size=12, train_steps=steps, **values)
    assert outcome.times.global_step == steps
    assert finding.find_latest_checkpoint_and_step(str(tmp_path))[1] == steps
    return training_runs.variables(tmp_path)

  return run


def kept(folder):
  return sorted(int(path.stem.rpartition('-')[2]) for path in folder.glob('model.ckpt-*.index'))


def test_resumes_on_other_devices_with_the_learning_rate_of_the_flags(train):
  before = train(1, learning_rate=.5)
  for steps, values in enumerate((
      {'num_cpu_replicas': 3}, {'num_cpu_replicas': 2}, {'distribution_strategy': 'off'},
      {'distribution_strategy': 'one_device'}), 2):
    stored = train(steps, learning_rate=1e-20, **values)
    assert not [name for name in stored if 'replica' in name]
    assert (stored['dense/kernel'] == before['dense/kernel']).all()


def test_timed_checkpoints_while_the_clock_is_set_back(train, tmp_path, monkeypatch):
  seconds = itertools.count(step=10)
  monkeypatch.setattr(checkpoints, 'time', types.SimpleNamespace(
      monotonic=lambda: next(seconds)))
  monkeypatch.setattr(time, 'time', lambda: 1e9 - next(seconds))
  train(3, save_checkpoints_secs=10)
  assert kept(tmp_path) == [0, 1, 2, 3]


def test_which_checkpoints_are_kept(train, tmp_path):
  train(3)
  train(9, save_checkpoints_steps=4, keep_checkpoint_max=10)
  assert kept(tmp_path) == [0, 3, 4, 8, 9], 'the same multiples after a resume'
  (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-9"\n')
  train(11, save_checkpoints_steps=1, keep_checkpoint_max=2)
  assert {path.name.split('.')[1] for path in tmp_path.glob('model.*')} == {'ckpt-10', 'ckpt-11'}
