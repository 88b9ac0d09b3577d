"""Makes the error for an argument that is not a flag; it proposes flags with similar names."""

import difflib
import re
from typing import Sequence

from estimator_train.errors import UserError


def unknown_flag_error(text: str, names: Sequence[str]) -> UserError:
  """Returns the error for an argument that does not match any flag."""
  name = text.lstrip('-').partition('=')[0]
  if not (text.startswith('-') and name):
    return UserError('an argument is not a flag', text, 'write it as --FLAG=VALUE')
  nearest = difflib.get_close_matches(name.lower().replace('-', '_'),
                                      list(names) + ['flagfile', 'help'], cutoff=0.7)
  if nearest and re.search(r'\s', name):
    remedy = 'did you mean --{}=VALUE?'.format(nearest[0])
  elif nearest:
    remedy = 'did you mean --{}?'.format(', --'.join(nearest))
  else:
    remedy = ''
  return UserError('unknown flag', text.partition('=')[0],
                   '{} --help lists all flags'.format(remedy).strip())
