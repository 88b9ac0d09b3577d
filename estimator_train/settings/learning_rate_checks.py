"""What the flags of the learning rate may be, by themselves and beside each other."""

from typing import Any

from estimator_train.errors import UserError

# Beyond these a float32 is 0 or infinite.
_SMALLEST, _LARGEST = 1e-37, 1e38
_MAX_EPOCHS = 10 ** 6


def check(settings: Any) -> None:
  """Raises a UserError that says what is wrong with the flags of the learning rate."""
  if not _SMALLEST <= settings.learning_rate <= _LARGEST:  # Nor does nan lie there.
    raise UserError('--learning_rate must be positive and finite',
                    '--learning_rate={}'.format(settings.learning_rate),
                    'give one such as 0.001')
  if not 0 <= settings.lr_warmup_epochs <= _MAX_EPOCHS:
    raise UserError('--lr_warmup_epochs must be from 0 to {}'.format(_MAX_EPOCHS),
                    '--lr_warmup_epochs={}'.format(settings.lr_warmup_epochs),
                    'give one such as 0.5')
  boundaries = settings.lr_boundaries_epochs
  if not all(low < high <= _MAX_EPOCHS for low, high in zip((0.,) + boundaries, boundaries)):
    raise UserError('--lr_boundaries_epochs must be positive and rise',
                    _given(settings, 'lr_boundaries_epochs'), 'give some such as 3,7.5')
  if not all(0 <= value <= _LARGEST for value in settings.lr_values):
    raise UserError('--lr_values must be 0 or more, and finite', _given(settings, 'lr_values'),
                    'give some such as 1e-3,1e-4')
  if settings.lr_schedule == 'constant':
    _check_constant(settings)
  elif settings.lr_schedule == 'piecewise':
    _check_piecewise(settings)
  else:
    _check_falling(settings)


def _check_constant(settings: Any) -> None:
  for name in ('lr_boundaries_epochs', 'lr_values'):
    if getattr(settings, name):
      raise UserError('--lr_schedule=constant takes no --' + name, _given(settings, name),
                      'leave it out, or give --lr_schedule=piecewise, exponential or cosine')


def _check_piecewise(settings: Any) -> None:
  boundaries, values = settings.lr_boundaries_epochs, settings.lr_values
  if not boundaries or len(values) != len(boundaries) + 1:
    raise UserError('--lr_schedule=piecewise takes boundaries, and one rate more than those',
                    _given(settings, 'lr_boundaries_epochs', 'lr_values'),
                    'give some such as --lr_boundaries_epochs=3,7 --lr_values=1e-3,1e-4,1e-5')
  if settings.learning_rate not in (settings._field_defaults['learning_rate'], values[0]):
    raise UserError('--learning_rate and the first of --lr_values are both the rate at the start',
                    _given(settings, 'learning_rate', 'lr_values'),
                    'give --learning_rate={}, or leave it out'.format(values[0]))
  if settings.lr_warmup_epochs > boundaries[0]:
    raise UserError('the warm-up, which rises to the first rate, must end before the second',
                    _given(settings, 'lr_warmup_epochs', 'lr_boundaries_epochs'),
                    'give --lr_warmup_epochs={} at most'.format(boundaries[0]))


def _check_falling(settings: Any) -> None:
  given = '--lr_schedule=' + settings.lr_schedule
  boundaries, values = settings.lr_boundaries_epochs, settings.lr_values
  if len(boundaries) > 1:
    raise UserError(given + ' takes one boundary, where it has fallen',
                    _given(settings, 'lr_boundaries_epochs'),
                    'give one, or none for the end of training')
  if len(values) > 1 or settings.lr_schedule == 'exponential' and not (values and values[0]):
    raise UserError(given + ' takes one rate, {}which it falls to'.format(
        'not 0, ' if settings.lr_schedule == 'exponential' else ''),
                    _given(settings, 'lr_values'),
                    'give one such as --lr_values=1e-5; it begins at --learning_rate')
  if values and values[0] > settings.learning_rate:
    raise UserError(given + ' falls from --learning_rate to --lr_values',
                    _given(settings, 'learning_rate', 'lr_values'), 'give a lower --lr_values')
  end = boundaries[0] if boundaries else settings.train_epochs
  if settings.trains and end is not None and settings.lr_warmup_epochs >= end:
    raise UserError('the rate falls after the warm-up, which must end before',
                    _given(settings, 'lr_warmup_epochs',
                           'lr_boundaries_epochs' if boundaries else 'train_epochs'),
                    'give a shorter --lr_warmup_epochs')


def _given(settings: Any, *names: str) -> str:
  """Returns the flags as they were written."""
  return ' '.join('--{}={}'.format(name, _text(getattr(settings, name))) for name in names)


def _text(value: Any) -> str:
  return ','.join(map(str, value)) if isinstance(value, tuple) else str(value)
