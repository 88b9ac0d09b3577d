"""Whether there are credentials for Kaggle; what they are appears nowhere.

The kaggle package is not asked: importing it signs in.
"""

import json
import os
import stat
from typing import List, Mapping, NamedTuple

from estimator_train.datasets.kaggle_archive import SIGN_IN
from estimator_train.doctor.check_results import Finding, ok, warning

_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')
_IN_IMAGE = '; in the image give `-v ~/.kaggle:/tmp/.kaggle:ro`'
_ONLY = '; only --dataset=oct2017 needs them'


class Key(NamedTuple):
  """Where credentials are.

  Attributes:
    variables: those of the two variables that are set.
    path: where the package expects its file.
    is_file: whether it is there.
    is_whole: whether it can be read and has both.
    is_open: whether other users may read it.
  """
  variables: List[str]
  path: str
  is_file: bool
  is_whole: bool
  is_open: bool


def look(environment: Mapping[str, str]) -> Key:
  """Looks where the kaggle package would."""
  path = os.path.join(_folder(environment), 'kaggle.json')
  is_whole = is_open = False
  is_file = os.path.exists(path)
  if is_file:
    try:
      is_open = bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
      with open(path, encoding='utf-8') as file:
        config = json.load(file)
      is_whole = isinstance(config, dict) and all(config.get(name) for name in ('username', 'key'))
    except (OSError, ValueError):
      pass
  return Key([name for name in _VARIABLES if environment.get(name)], path, is_file, is_whole,
             is_open)


def _folder(environment: Mapping[str, str]) -> str:
  given = environment.get('KAGGLE_CONFIG_DIR')
  if given:
    return given
  home = os.path.expanduser('~')
  usual = os.path.join(home, '.kaggle')
  if os.path.exists(usual):
    return usual
  # Newer releases of the package, where the usual folder is not there.
  other = os.path.join(environment.get('XDG_CONFIG_HOME') or os.path.join(home, '.config'),
                       'kaggle')
  return other if os.path.exists(other) else usual


def check(key: Key, is_needed: bool, in_image: bool = False) -> Finding:
  """Says whether a download from Kaggle can sign in.

  Args:
    key: where credentials are.
    is_needed: whether the run would want to.
    in_image: whether this is the Dockerfile's image, which sees no home folder.
  """
  if len(key.variables) == len(_VARIABLES):
    return ok('kaggle', 'credentials in the environment')
  if key.variables:
    return warning('kaggle', '{} is set without the other variable'.format(key.variables[0]),
                    'set both ' + ' and '.join(_VARIABLES))
  if not key.is_file:
    if is_needed:
      return warning('kaggle', 'no credentials', SIGN_IN + (_IN_IMAGE if in_image else ''))
    return ok('kaggle', 'no credentials' + _ONLY)
  if not key.is_whole:
    return warning('kaggle', '{} cannot be read, or lacks username or key'.format(key.path),
                    SIGN_IN)
  if key.is_open:
    return warning('kaggle', 'other users may read ' + key.path,
                    '`chmod 600 {}`'.format(key.path))
  return ok('kaggle', 'credentials in ' + key.path)
