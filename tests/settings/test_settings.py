"""What follows from the settings: batch sizes and steps."""

import pytest

from estimator_train.errors import UserError
from estimator_train.settings import (
    Settings,
    per_replica_batch_size,
    steps_for_epochs,
    total_train_steps,
)


@pytest.mark.parametrize('global_size, replicas, share', [(256, 1, 256), (256, 2, 128), (9, 3, 3)])
def test_per_replica_batch_size(global_size, replicas, share):
  assert per_replica_batch_size(global_size, replicas) == share


@pytest.mark.parametrize('global_size, replicas, proposed', [
    (128, 3, '126 or 129'), (7, 2, '6 or 8'), (3, 8, 'use 8')])
def test_uneven_batch_proposes_the_nearest(global_size, replicas, proposed):
  with pytest.raises(UserError, match=proposed + '$'):
    per_replica_batch_size(global_size, replicas)


# The article: 5 epochs of 60,000 at 2 x 512 are 293 steps, 2 of 83,484 at 2 x 32 are 2,609.
@pytest.mark.parametrize('epochs, examples, batch_size, steps', [
    (5, 60000, 1024, 293), (2, 83484, 64, 2609), (1, 100, 100, 1), (1, 1, 100, 1)])
def test_epochs_to_steps(epochs, examples, batch_size, steps):
  settings = Settings(model_dir='x', train_epochs=epochs, batch_size=batch_size)
  assert total_train_steps(settings, examples, batch_size) == steps


@pytest.mark.parametrize('epochs, steps', [(0.1, 1), (1.1, 11), (1e-05, 1), (2, 20), (0.7001, 8)])
def test_epochs_are_the_decimals_that_were_written(epochs, steps):
  assert steps_for_epochs(epochs, 10, 1) == steps


def test_epochs_without_end():
  with pytest.raises(UserError, match='give --train_steps'):
    total_train_steps(Settings(model_dir='x', train_epochs=1, dataset='synthetic'), None, 1)


def test_steps_left_of_a_run_whose_batch_size_has_changed():
  settings = Settings(mode='train', model_dir='m', train_epochs=3, batch_size=20)
  assert total_train_steps(settings, 100, 20) == 15
  assert total_train_steps(settings, 100, 20, start_step=10, examples_seen=100) == 20
  assert total_train_steps(settings, 100, 20, start_step=10, examples_seen=291) == 11
  assert total_train_steps(settings, 100, 20, start_step=30, examples_seen=300) == 30
  assert total_train_steps(settings, 100, 20, start_step=30, examples_seen=301) == 30
