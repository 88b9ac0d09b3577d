"""What a run was asked to do, checked: one value a flag, and what follows from them."""

import csv
import io
import math
import os
from fractions import Fraction
from typing import Any, Dict, List, Optional, Tuple, Type

from estimator_train.errors import UserError
from estimator_train.settings import experiment_checks, learning_rate_checks, user_code
from estimator_train.settings.constraints import CONSTRAINTS, REQUIREMENTS
from estimator_train.settings.flag import Group, all_flags, flags_of, groups
from estimator_train.settings.groups import Optimizer

# Imported for their rules.
RULES = (experiment_checks, learning_rate_checks)


class Settings:
  """Every flag's value, valid by itself and together with the others.

  `Settings(FLAG=VALUE, ...)`; what is left out is as without the flag, and --help explains each.
  `model` and `dataset` may be functions, which are known by their names from then on. A flag's
  value is the attribute of its name; `settings[GROUP]` is a group of them, such as
  `settings[groups.Devices]`. Settings do not change.

  Raises:
    UserError: when it is made of values that cannot be.
  """
  __slots__ = ('_groups',)
  _groups: Dict[type, Any]

  def __init__(self, **values: Any) -> None:
    flags = all_flags()
    for name in values:
      if name not in flags:
        raise UserError('there is no such setting', name, 'python -m estimator_train --help lists '
                        'all')
    values = {name: _as_a_flag(value) for name, value in values.items()}
    for name, value in values.items():
      flags[name].check_value(value)
    made = {group: group(**{flag.name: values[flag.name] for flag in flags_of(group)
                            if flag.name in values}) for group in groups()}
    object.__setattr__(self, '_groups', made)
    for read, rule in CONSTRAINTS:
      rule(*(self[group] for group in read))

  def __getitem__(self, group: Type[Group]) -> Group:
    return self._groups[group]

  def __getattr__(self, name: str) -> Any:
    if not name.startswith('_'):
      for values in self._groups.values():
        if hasattr(values, name):
          return getattr(values, name)
    raise AttributeError(name)

  def __setattr__(self, name: str, value: Any) -> None:
    raise AttributeError('settings do not change: use evolve({}=...)'.format(name))

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Settings) and self.items() == other.items()

  def __hash__(self) -> int:
    return hash(tuple(self.items()))

  def __repr__(self) -> str:
    flags = all_flags()
    return 'Settings({})'.format(', '.join(
        '{}={!r}'.format(name, value) for name, value in self.items()
        if value != flags[name].default))

  def __reduce__(self) -> Any:
    return _make_settings, (dict(self.items()),)

  def items(self) -> List[Tuple[str, Any]]:
    """Returns the names and values of all flags."""
    return [(name, getattr(self, name)) for name in all_flags()]

  def evolve(self, **changes: Any) -> 'Settings':
    """Returns the settings with other values, which are checked as by the constructor."""
    return Settings(**dict(self.items(), **changes))

  def for_mode(self, mode: str) -> 'Settings':
    """Returns the settings of a run in that mode.

    Raises:
      UserError: a value that the mode requires is not given, or one is not for that mode.
    """
    settings = self.evolve(mode=mode)
    for modes, rule in REQUIREMENTS:
      if mode in modes:
        rule(settings)
    return settings


def _make_settings(values: Dict[str, Any]) -> Settings:
  return Settings(**values)


def per_replica_batch_size(global_batch_size: int, num_replicas: int) -> int:
  """Returns the examples that one replica takes in one step.

  Raises:
    UserError: when the replicas' shares would not be equal; it proposes sizes that are.
  """
  if global_batch_size % num_replicas == 0:
    return global_batch_size // num_replicas
  below = global_batch_size - global_batch_size % num_replicas
  near = [size for size in (below, below + num_replicas) if size > 0]
  raise UserError('--batch_size is over all replicas and must divide evenly by their number',
                  '--batch_size={} over {} replicas'.format(global_batch_size, num_replicas),
                  'the nearest that work are ' + ' and '.join(str(size) for size in near))


def examples_a_step(settings: Settings, num_workers: int) -> int:
  """Returns the examples of a global step.

  Under parameter servers each worker's step counts as one, and takes that worker's share.
  """
  alone = settings.distribution_strategy == 'parameter_server'
  return settings.batch_size // (num_workers if alone else 1)


def steps_of_epochs(epochs: float, num_examples: int, step_examples: int) -> int:
  """Returns the global step at which so many epochs are through.

  Epochs follow each other without a break, so a step can end one and begin the next.

  Args:
    epochs: taken as the decimal that was written, not as its nearest binary fraction.
    num_examples: of an epoch.
    step_examples: of a global step.
  """
  return math.ceil(Fraction(str(epochs)) * num_examples / step_examples)


def total_train_steps(settings: Settings, num_examples: Optional[int], step_examples: int,
                      first_step: int = 0, examples_seen: int = 0) -> int:
  """Returns the global step to stop at.

  Only the last step of all can lack examples of the epochs asked for; it is filled from the next
  epoch, as every step takes a whole batch.

  Args:
    settings: one of `train_steps` and `train_epochs` is set.
    num_examples: the examples of an epoch; None where the data set has no end.
    step_examples: of a global step.
    first_step: the global step that a resumed run goes on from.
    examples_seen: in the steps before that, which may have had other batch sizes.

  Raises:
    UserError: when epochs of a data set without end are asked for.
  """
  if settings.train_steps is not None:
    return settings.train_steps
  assert settings.train_epochs is not None
  if num_examples is None:
    raise UserError('a data set without end has no epochs',
                    '--dataset={} --train_epochs={}'.format(settings.dataset,
                                                            settings.train_epochs),
                    'give --train_steps instead')
  examples_left = settings.train_epochs * num_examples - examples_seen
  return first_step + max(math.ceil(examples_left / step_examples), 0)


def growth_of_learning_rate(settings: Optimizer) -> float:
  """Returns what the global batch size multiplies the learning rates by.

  They are those of `--base_batch_size`. `linear` keeps the step per example as the batch grows
  (Goyal et al. 2017, arXiv:1706.02677), `sqrt` the variance of the step (Krizhevsky 2014,
  arXiv:1404.5997).

  Raises:
    ValueError: there is no such scaling.
  """
  growth = settings.batch_size / settings.base_batch_size
  growths = {'none': 1., 'linear': growth, 'sqrt': math.sqrt(growth)}
  if settings.scale_learning_rate not in growths:
    raise ValueError('no scaling of the learning rate is implemented for {!r}'.format(
        settings.scale_learning_rate))
  return growths[settings.scale_learning_rate]


def to_flagfile(settings: Settings) -> str:
  """Returns every flag's value as a text that `--flagfile` reads; unset ones as comments."""
  lines = []
  for name, value in settings.items():
    if value is None or value == ():
      lines.append('# --{} is not set'.format(name))
    else:
      lines.append(_argument(name, value))
  return '\n'.join(lines) + '\n'


def to_arguments(settings: Settings) -> List[str]:
  """Returns the command line that the settings are parsed from: the flags off their defaults."""
  flags = all_flags()
  return [_argument(name, value) for name, value in settings.items()
          if value != flags[name].default]


def _as_a_flag(value: Any) -> Any:
  """Returns a value as the command line would give it."""
  if callable(value):
    return user_code.name_of(value)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  return tuple(value) if isinstance(value, list) else value


def _argument(name: str, value: Any) -> str:
  if isinstance(value, bool):
    value = str(value).lower()
  elif isinstance(value, tuple):
    row = io.StringIO()
    csv.writer(row, delimiter=all_flags()[name].separator,
               lineterminator='').writerow(value)
    value = row.getvalue()
  return '--{}={}'.format(name, value)
