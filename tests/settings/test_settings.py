"""Settings are immutable and declared once; batch sizes, steps and paths follow from them."""

import pickle

import numpy as np
import pytest

from estimator_train import settings as lib
from estimator_train.errors import InvalidValue, UserError
from estimator_train.settings import Settings, command_line, to_flagfile


def test_settings_are_values():
  settings = Settings(model_dir='x', seed=7, trace_steps=[3, 4])
  for owner in (settings, settings.optimizer):
    with pytest.raises(AttributeError, match='^settings are immutable: seed=8: make a changed copy '
                                             r'by settings[.]evolve[(]seed=8[)]$'):
      owner.seed = 8
  with pytest.raises(AttributeError, match='^settings are immutable: run'):
    del settings.run
  with pytest.raises(AttributeError, match='no_such_flag'):
    print(settings.no_such_flag)
  other = settings.evolve(seed=8)
  assert (other.optimizer.seed, other.seed, settings.optimizer.seed) == (8, 8, 7)
  assert other != settings == other.evolve(seed=7)
  assert repr(settings) == "Settings(model_dir='x', seed=7, trace_steps=(3, 4))"
  assert pickle.loads(pickle.dumps(settings)) == settings
  assert len({settings, settings.evolve(seed=7), other}) == 2
  with pytest.raises(UserError, match='^mode has no such choice'):
    settings.for_mode('fly')


def test_a_change_unsets_what_it_excludes():
  """As on the command line, where a flag overrides the other one of the pair in a flagfile."""
  settings = Settings(train_epochs=3)
  assert settings.evolve(train_steps=5) == Settings(train_steps=5)
  assert settings.evolve(train_steps=None, seed=2) == Settings(train_epochs=3, seed=2)
  assert settings.evolve(train_epochs=None).train_epochs is None
  with pytest.raises(InvalidValue, match='^train_steps and train_epochs exclude each other: '):
    settings.evolve(train_steps=5, train_epochs=3)


def test_a_batch_that_is_smaller_than_the_number_of_replicas():
  with pytest.raises(UserError, match='3 for 8 replicas: use 8$'):
    lib.per_replica_batch_size(3, 8)


def test_tilde_is_the_home_folder(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  for name in ('cache', 'checkpoint', 'data_dir', 'eval_pattern', 'export_dir', 'input',
               'model_dir', 'output', 'runs', 'train_pattern', 'weights'):
    settings = Settings(dataset='image_folder', **{name: ['~/x'] if name == 'runs' else '~/x'})
    assert '\n--{}=/home/me/x\n'.format(name) in to_flagfile(settings)
  for given, expected in (
      ('~', '/home/me'), ('~root/x', '/root/x'), ('./~/x', './~/x'),
      ('~/a/*,b,~/c', '/home/me/a/*,b,/home/me/c')):
    settings = command_line.parse(['--dataset=tfrecord', '--train_steps=1', '--model_dir=m',
                            '--train_pattern=' + given])
    assert settings.data.train_pattern == settings.evolve(seed=3).train_pattern == expected
  with pytest.raises(UserError, match='^model_dir begins with ~, but .*=~no.such/x: .*, or ./~no'):
    Settings(model_dir='~no.such/x')
  assert Settings(dataset='synthetic', labels=['~a', '~no.such']).labels == ('~a', '~no.such')


def test_paths_that_tensorflow_would_take_for_patterns():
  for name in ('model_dir', 'weights', 'checkpoint', 'export_dir'):
    for path in ('lr=[0.1]/x', 'a?', 'run*/m', 'ba\\ck'):
      with pytest.raises(InvalidValue, match='^' + name + ' must not contain .*: .*rename or'):
        Settings(**{name: path})
  for name, path in (('model_dir', 'a]b {c} (1), +~$'), ('weights', 'model [1].h5'),
                     ('data_dir', 'a[1]*'), ('cache', 'a[1]'), ('output', 'a[1].csv')):
    assert getattr(Settings(**{name: path}), name) == path


def test_values_of_numpy():
  """Sizes and rates often come from arrays."""
  for size in (9, np.int64(9)):  # A square.
    assert Settings(dataset='synthetic', image_size=size).image_size == (9, 9)
  assert command_line.parse(['--dataset=synthetic', '--image_size=9', '--train_steps=1']
                            ).image_size == (9, 9)
  settings = Settings(dataset='synthetic', image_size=np.zeros([4, 5]).shape, seed=np.int64(3),
                      labels=np.array(['a', 'b']), learning_rate=np.float32(.5),
                      lr_schedule='piecewise', lr_boundaries_epochs=np.array([1, 2]),
                      lr_values=[np.float64(.5), .25, np.int32(0)])
  texts = to_flagfile(settings)
  for line in ('image_size=4,5', 'seed=3', 'labels=a,b', 'learning_rate=0.5',
               'lr_boundaries_epochs=1,2', 'lr_values=0.5,0.25,0'):
    assert '--{}\n'.format(line) in texts
