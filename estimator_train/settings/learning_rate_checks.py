"""Defines the rules between the flags of the learning rate schedule.

A constraint holds in all modes, a requirement only in the modes that are given to its decorator.
"""

from typing import Any

from estimator_train.errors import UserError
from estimator_train.settings import choices
from estimator_train.settings.constraints import constraint
from estimator_train.settings.flag import all_flags, format_value
from estimator_train.settings.groups import Optimizer
from estimator_train.settings.requirements import requirement


@constraint(Optimizer)
def _check_schedule(optimizer: Optimizer) -> None:
  if optimizer.lr_schedule == 'constant':
    _check_constant(optimizer)
  elif optimizer.lr_schedule == 'piecewise':
    _check_piecewise(optimizer)
  else:
    _check_decay(optimizer)


def _check_constant(optimizer: Optimizer) -> None:
  for name in ('lr_boundaries_epochs', 'lr_values'):
    if getattr(optimizer, name):
      raise UserError('--lr_schedule=constant takes no --' + name, _format_flags(optimizer, name),
                      'omit it, or give --lr_schedule=piecewise, exponential or cosine')


def _check_piecewise(optimizer: Optimizer) -> None:
  boundaries, values = optimizer.lr_boundaries_epochs, optimizer.lr_values
  if not boundaries or len(values) != len(boundaries) + 1:
    raise UserError('--lr_schedule=piecewise takes N boundaries and N + 1 learning rates',
                    _format_flags(optimizer, 'lr_boundaries_epochs', 'lr_values'),
                    'give values such as --lr_boundaries_epochs=3,7 --lr_values=1e-3,1e-4,1e-5')
  if optimizer.learning_rate not in (all_flags()['learning_rate'].default, values[0]):
    raise UserError('--learning_rate must equal the first of --lr_values',
                    _format_flags(optimizer, 'learning_rate', 'lr_values'),
                    'give --learning_rate={}, or omit it'.format(values[0]))
  if optimizer.lr_warmup_epochs > boundaries[0]:
    raise UserError('the warm-up must end by the first boundary',
                    _format_flags(optimizer, 'lr_warmup_epochs', 'lr_boundaries_epochs'),
                    'give --lr_warmup_epochs={} at most'.format(boundaries[0]))


def _check_decay(optimizer: Optimizer) -> None:
  schedule_flag = '--lr_schedule=' + optimizer.lr_schedule
  boundaries, values = optimizer.lr_boundaries_epochs, optimizer.lr_values
  if len(boundaries) > 1:
    raise UserError(schedule_flag + ' takes one boundary, the end of the decay',
                    _format_flags(optimizer, 'lr_boundaries_epochs'),
                    'give one boundary, or none to decay until the end of training')
  if len(values) > 1 or optimizer.lr_schedule == 'exponential' and not (values and values[0]):
    raise UserError(schedule_flag + ' takes one final rate{}'.format(
        ' above 0' if optimizer.lr_schedule == 'exponential' else ''),
                    _format_flags(optimizer, 'lr_values'),
                    'give a rate such as --lr_values=1e-5; the first rate is --learning_rate')
  if values and values[0] > optimizer.learning_rate:
    raise UserError(schedule_flag + ' requires --lr_values no higher than --learning_rate',
                    _format_flags(optimizer, 'learning_rate', 'lr_values'),
                    'give a lower --lr_values')


@requirement(*choices.TRAINING_MODES)
def _check_decay_ends_after_warm_up(settings: Any) -> None:
  boundaries = settings.lr_boundaries_epochs
  if settings.lr_schedule not in ('exponential', 'cosine'):
    return
  end = boundaries[0] if boundaries else settings.train_epochs
  if end is not None and settings.lr_warmup_epochs >= end:
    raise UserError('the warm-up must end before the end of the decay',
                    _format_flags(settings, 'lr_warmup_epochs',
                                  'lr_boundaries_epochs' if boundaries else 'train_epochs'),
                    'give a shorter --lr_warmup_epochs')


def _format_flags(flags: Any, *names: str) -> str:
  """Formats flags and their values as on a command line."""
  return ' '.join('--{}={}'.format(name, format_value(getattr(flags, name))) for name in names)
