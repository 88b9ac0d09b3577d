"""Rules between the flags of the learning rate."""

from typing import Any

from estimator_train.errors import UserError
from estimator_train.settings import choices
from estimator_train.settings.constraints import constraint, requirement
from estimator_train.settings.flag import all_flags, text_of
from estimator_train.settings.groups import Optimizer


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
      raise UserError('--lr_schedule=constant takes no --' + name, _given(optimizer, name),
                      'leave it out, or give --lr_schedule=piecewise, exponential or cosine')


def _check_piecewise(optimizer: Optimizer) -> None:
  boundaries, values = optimizer.lr_boundaries_epochs, optimizer.lr_values
  if not boundaries or len(values) != len(boundaries) + 1:
    raise UserError('--lr_schedule=piecewise takes boundaries, and one rate more than those',
                    _given(optimizer, 'lr_boundaries_epochs', 'lr_values'),
                    'give some such as --lr_boundaries_epochs=3,7 --lr_values=1e-3,1e-4,1e-5')
  if optimizer.learning_rate not in (all_flags()['learning_rate'].default, values[0]):
    raise UserError('--learning_rate and the first of --lr_values are both the rate at the start',
                    _given(optimizer, 'learning_rate', 'lr_values'),
                    'give --learning_rate={}, or leave it out'.format(values[0]))
  if optimizer.lr_warmup_epochs > boundaries[0]:
    raise UserError('the warm-up, which rises to the first rate, must end before the second',
                    _given(optimizer, 'lr_warmup_epochs', 'lr_boundaries_epochs'),
                    'give --lr_warmup_epochs={} at most'.format(boundaries[0]))


def _check_decay(optimizer: Optimizer) -> None:
  given = '--lr_schedule=' + optimizer.lr_schedule
  boundaries, values = optimizer.lr_boundaries_epochs, optimizer.lr_values
  if len(boundaries) > 1:
    raise UserError(given + ' takes one boundary, where it has fallen',
                    _given(optimizer, 'lr_boundaries_epochs'),
                    'give one, or none for the end of training')
  if len(values) > 1 or optimizer.lr_schedule == 'exponential' and not (values and values[0]):
    raise UserError(given + ' takes one rate, {}which it falls to'.format(
        'not 0, ' if optimizer.lr_schedule == 'exponential' else ''),
                    _given(optimizer, 'lr_values'),
                    'give one such as --lr_values=1e-5; it begins at --learning_rate')
  if values and values[0] > optimizer.learning_rate:
    raise UserError(given + ' falls from --learning_rate to --lr_values',
                    _given(optimizer, 'learning_rate', 'lr_values'), 'give a lower --lr_values')


@requirement(*choices.TRAINS)
def _check_decay_ends_after_warm_up(settings: Any) -> None:
  boundaries = settings.lr_boundaries_epochs
  if settings.lr_schedule not in ('exponential', 'cosine'):
    return
  end = boundaries[0] if boundaries else settings.train_epochs
  if end is not None and settings.lr_warmup_epochs >= end:
    raise UserError('the rate falls after the warm-up, which must end before',
                    _given(settings, 'lr_warmup_epochs',
                           'lr_boundaries_epochs' if boundaries else 'train_epochs'),
                    'give a shorter --lr_warmup_epochs')


def _given(flags: Any, *names: str) -> str:
  """Returns the flags as they were written."""
  return ' '.join('--{}={}'.format(name, text_of(getattr(flags, name))) for name in names)
