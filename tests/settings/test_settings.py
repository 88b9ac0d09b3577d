"""What follows from the settings: batch sizes and steps."""

import pytest

from estimator_train import flags
from estimator_train.errors import InvalidValue, UserError
from estimator_train.settings import (
    Settings,
    per_replica_batch_size,
    steps_for_epochs,
    to_flagfile,
    total_train_steps,
)
from estimator_train.settings.flag import all_flags


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


PATH_FLAGS = sorted(name for name, flag in all_flags().items() if flag.is_path)


@pytest.fixture
def home(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')


def test_every_path_flag_is_known_as_such():
  assert PATH_FLAGS == ['cache', 'checkpoint', 'data_dir', 'eval_pattern', 'export_dir', 'input',
                        'model_dir', 'output', 'runs', 'train_pattern', 'weights']


@pytest.mark.parametrize('name', PATH_FLAGS)
def test_tilde_is_the_home_folder(name, home):
  given = ['~/x'] if name == 'runs' else '~/x'
  expected = ('/home/me/x',) if name == 'runs' else '/home/me/x'
  settings = Settings(dataset='image_folder', **{name: given})
  assert getattr(settings, name) == expected
  assert '\n--{}=/home/me/x\n'.format(name) in to_flagfile(settings)


@pytest.mark.parametrize('given, expected', [
    ('~', '/home/me'), ('~root/x', '/root/x'), ('./~/x', './~/x'), ('a~', 'a~'), ('/~/b', '/~/b'),
    ('~/a/*,b,~/c', '/home/me/a/*,b,/home/me/c')])
def test_tilde_only_at_the_start_of_a_path(given, expected, home, tmp_path):
  settings = Settings(dataset='tfrecord', train_pattern=given)
  assert settings.train_pattern == settings.evolve(seed=3).train_pattern == expected
  (tmp_path / 'my.flags').write_text(
      '--dataset=tfrecord\n--train_steps=1\n--model_dir=m\n--train_pattern={}\n'.format(given))
  assert flags.parse(['--flagfile={}/my.flags'.format(tmp_path)]).train_pattern == expected


def test_tilde_of_no_user(home):
  with pytest.raises(UserError, match='^model_dir begins with ~, but .*=~no.such/x: .*, or ./~no'):
    Settings(model_dir='~no.such/x')
  assert Settings(dataset='synthetic', labels=['~a', '~no.such']).labels == ('~a', '~no.such')


@pytest.mark.parametrize('name', ['model_dir', 'weights', 'checkpoint', 'export_dir'])
@pytest.mark.parametrize('path', ['lr=[0.1]/x', 'a?', 'run*/m', 'ba\\ck'])
def test_paths_that_tensorflow_would_take_for_patterns(name, path):
  with pytest.raises(InvalidValue, match='^' + name + ' must not contain .*, because .*rename or'):
    Settings(**{name: path})


@pytest.mark.parametrize('values', [
    {'model_dir': 'a]b {c} (1), +~$'}, {'weights': 'model [1].h5'}, {'data_dir': 'a[1]*'},
    {'runs': ['a[1]']}, {'cache': 'a[1]'}, {'output': 'a[1].csv'}])
def test_other_paths_may_have_any_characters(values):
  ((name, value),) = values.items()
  assert getattr(Settings(**values), name) == (tuple(value) if name == 'runs' else value)
