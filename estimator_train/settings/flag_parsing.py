"""From the texts of flags to values, where absl has no kind of them; and to the nearest flag."""

import difflib
import re
from typing import List, Optional, Sequence, Tuple

from estimator_train.errors import UserError


def height_width(parts: Optional[List[str]]) -> Optional[Tuple[int, ...]]:
  """Returns the numbers of --image_size."""
  if parts is None:
    return None
  try:
    return tuple(int(part) for part in parts)
  except ValueError as error:
    raise UserError('--image_size must be height,width in pixels',
                    '--image_size=' + ','.join(parts), 'give one such as 28,28') from error


def numbers(name: str, parts: List[str]) -> Tuple[float, ...]:
  """Returns the numbers of a flag that is a list of them."""
  try:
    return tuple(float(part) for part in parts)
  except ValueError as error:
    raise UserError('--{} must be numbers'.format(name), '--{}={}'.format(name, ','.join(parts)),
                    'give some such as 3,7.5') from error


def first_last(text: Optional[str]) -> Optional[Tuple[int, ...]]:
  """Returns the steps of --trace_steps."""
  if text is None:
    return None
  match = re.match(r'(\d+):(\d+)$', text)
  if match is None:
    raise UserError('--trace_steps must be first:last, two steps', '--trace_steps=' + text,
                    'give one such as 101:110')
  return tuple(int(step) for step in match.groups())


def unknown(text: str, names: Sequence[str]) -> UserError:
  """Returns the error for an argument that is none of the flags."""
  name = text.lstrip('-').partition('=')[0]
  if not (text.startswith('-') and name):
    return UserError('an argument is no flag', text, 'write it as --FLAG=VALUE')
  nearest = difflib.get_close_matches(name.lower().replace('-', '_'),
                                      list(names) + ['flagfile', 'help'], cutoff=0.7)
  if nearest and re.search(r'\s', name):
    remedy = 'did you mean --{}=VALUE?'.format(nearest[0])
  elif nearest:
    remedy = 'did you mean --{}?'.format(', --'.join(nearest))
  else:
    remedy = ''
  return UserError('unknown flag', text.partition('=')[0],
                   '{} --help lists all'.format(remedy).strip())
