"""Makes the errors for unknown flags and keywords. The errors propose flags of similar names."""

import difflib
import re
from typing import List, Sequence

from estimator_train.errors import UnknownKeyword, UserError


def unknown_flag_error(text: str, names: Sequence[str]) -> UserError:
  """Returns the error for an argument that does not match any flag."""
  name = text.lstrip('-').partition('=')[0]
  if not (text.startswith('-') and name):
    return UserError('an argument is not a flag', text, 'write it as --FLAG=VALUE')
  nearest = _similar_names(name, [*names, 'flagfile', 'help'])
  if nearest and re.search(r'\s', name):  # For example, a flagfile has the line `--FLAG VALUE`.
    remedy = 'did you mean --{}=VALUE?'.format(nearest[0])
  elif nearest:
    remedy = 'did you mean --{}?'.format(', --'.join(nearest))
  else:
    remedy = ''
  return UserError('unknown flag', text.partition('=')[0],
                   '{} --help lists all flags'.format(remedy).strip())


def unknown_keyword_error(name: str, names: Sequence[str]) -> UnknownKeyword:
  """Returns the error for a keyword argument that does not match any flag."""
  nearest = _similar_names(name, names)
  remedy = 'did you mean {}? '.format(' or '.join(nearest)) if nearest else ''
  return UnknownKeyword('unknown keyword', name,
                        remedy + 'help(estimator_train.Settings) lists all keywords')


def _similar_names(name: str, names: Sequence[str]) -> List[str]:
  return difflib.get_close_matches(name.lower().replace('-', '_'), names, cutoff=0.7)
