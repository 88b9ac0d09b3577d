"""Flags are declared once and known everywhere; modes have requirements; settings are immutable."""

import pickle

import attr
import pytest

from estimator_train import flags
from estimator_train.errors import UserError
from estimator_train.settings import Settings, groups, to_flagfile
from estimator_train.settings.constraints import CONSTRAINTS, constraint
from estimator_train.settings.flag import flag, flag_group, remove_group, satisfies


@pytest.fixture
def clipping():
  """Declares a group with one flag, and a rule between that and another one."""
  @flag_group('clipping')
  @attr.s(auto_attribs=True, frozen=True)
  class Clipping:
    gradient_clip_norm: float = flag(
        0., 'norm that gradients are clipped to; 0: none',
        check=satisfies(lambda norm: norm >= 0, 'must be 0 or more', 'give one such as 1.5'))

  @constraint(Clipping, groups.Optimizer)
  def rule(of_clipping, optimizer):
    if of_clipping.gradient_clip_norm and optimizer.optimizer == 'rmsprop':
      raise UserError('gradients of RMSprop are not clipped', 'both', 'leave one out')

  yield Clipping
  CONSTRAINTS.remove(((Clipping, groups.Optimizer), rule))
  remove_group(Clipping)


def test_a_flag_is_declared_in_one_place(clipping):
  assert '\nclipping:\n  --gradient_clip_norm: norm that gradients are clipped to; 0: none ' \
         '(default: 0.0)\n' in flags.help_text()
  settings = flags.parse(['--model_dir=x', '--train_steps=1', '--gradient_clip_norm=1.5'])
  assert settings == Settings(model_dir='x', train_steps=1, gradient_clip_norm=1.5)
  assert '\n--gradient_clip_norm=1.5\n' in to_flagfile(settings)
  assert settings.gradient_clip_norm == settings[clipping].gradient_clip_norm == 1.5
  with pytest.raises(UserError, match='^gradient_clip_norm must be 0 or more: .*=-1.0: give one'):
    settings.evolve(gradient_clip_norm=-1.)
  with pytest.raises(UserError, match='not clipped'):
    settings.evolve(optimizer='rmsprop')


def test_a_flag_that_is_gone_is_unknown():
  with pytest.raises(UserError, match='unknown flag: --gradient_clip_norm'):
    flags.parse(['--gradient_clip_norm=1'])
  with pytest.raises(UserError, match='unknown keyword: gradient_clip_norm'):
    Settings(gradient_clip_norm=1.)


def test_modes_require_what_they_use():
  settings = Settings(model_dir='x', input='*.jpeg')
  assert settings.for_mode('predict').mode == 'predict'
  assert settings.for_mode('evaluate').input == '*.jpeg'
  with pytest.raises(UserError, match='training requires --train_steps or'):
    settings.for_mode('train')
  with pytest.raises(UserError, match='--export_dir'):
    settings.for_mode('export')
  with pytest.raises(UserError, match='--model_dir is required'):
    Settings(train_steps=1).for_mode('train')
  with pytest.raises(UserError, match='^mode has no such choice'):
    settings.for_mode('fly')


def test_settings_do_not_change():
  settings = Settings(model_dir='x', seed=7)
  with pytest.raises(AttributeError, match='use evolve'):
    settings.seed = 8
  assert settings.evolve(seed=8).seed == 8 and settings.seed == 7
  assert settings.evolve(seed=8) != settings == Settings(model_dir='x', seed=7)
  assert len({settings, settings.evolve(seed=7), settings.evolve(seed=8)}) == 2


def test_settings_are_shown_and_pickled_by_what_was_given():
  settings = Settings(model_dir='x', trace_steps=[3, 4])
  assert repr(settings) == "Settings(model_dir='x', trace_steps=(3, 4))"
  assert pickle.loads(pickle.dumps(settings)) == settings
  with pytest.raises(AttributeError):
    print(settings.no_such_flag)
