"""Checks for credentials of Kaggle, without showing them.

The kaggle package is not used, since importing it signs in.
"""

import json
import os
import stat
from typing import List, Mapping, NamedTuple

from estimator_train.datasets.kaggle_archive import SIGN_IN_REMEDY
from estimator_train.doctor.check_results import CheckResult, ok, warning

_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')
_IN_IMAGE = '; in the image give `-v ~/.kaggle:/tmp/.kaggle:ro`'
_NEEDED_BY = '; only --dataset=oct2017 needs them'


class KaggleKey(NamedTuple):
  """The places of Kaggle credentials.

  Attributes:
    variables: those of the two environment variables that are set.
    path: path at which the package expects its file.
    is_file: whether the file exists.
    is_complete: whether it can be read, and has both a user name and a key.
    is_exposed: whether other users may read it.
  """
  variables: List[str]
  path: str
  is_file: bool
  is_complete: bool
  is_exposed: bool


def find_key(environment: Mapping[str, str]) -> KaggleKey:
  """Searches for credentials in the places where the kaggle package does."""
  path = os.path.join(_folder(environment), 'kaggle.json')
  is_complete = is_exposed = False
  is_file = os.path.exists(path)
  if is_file:
    try:
      is_exposed = bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
      with open(path, encoding='utf-8') as file:
        config = json.load(file)
      is_complete = isinstance(config, dict) and all(
          config.get(name) for name in ('username', 'key'))
    except (OSError, ValueError):
      pass
  return KaggleKey([name for name in _VARIABLES if environment.get(name)], path, is_file,
                   is_complete, is_exposed)


def _folder(environment: Mapping[str, str]) -> str:
  given = environment.get('KAGGLE_CONFIG_DIR')
  if given:
    return given
  home = os.path.expanduser('~')
  default = os.path.join(home, '.kaggle')
  if os.path.exists(default):
    return default
  # Newer releases of the package use this one if the default does not exist.
  xdg_folder = os.path.join(environment.get('XDG_CONFIG_HOME') or os.path.join(home, '.config'),
                            'kaggle')
  return xdg_folder if os.path.exists(xdg_folder) else default


def check_key(key: KaggleKey, is_needed: bool, in_image: bool = False) -> CheckResult:
  """Checks that a download from Kaggle can sign in.

  Args:
    key: the places of credentials.
    is_needed: whether the run downloads from Kaggle.
    in_image: whether this is the Dockerfile's image, which has no access to the home folder.
  """
  if len(key.variables) == len(_VARIABLES):
    return ok('kaggle', 'credentials in the environment')
  if key.variables:
    return warning('kaggle', '{} is set without the other variable'.format(key.variables[0]),
                    'set both ' + ' and '.join(_VARIABLES))
  if not key.is_file:
    if is_needed:
      return warning('kaggle', 'no credentials', SIGN_IN_REMEDY + (_IN_IMAGE if in_image else ''))
    return ok('kaggle', 'no credentials' + _NEEDED_BY)
  if not key.is_complete:
    return warning('kaggle', '{} cannot be read, or lacks username or key'.format(key.path),
                    SIGN_IN_REMEDY)
  if key.is_exposed:
    return warning('kaggle', 'other users may read ' + key.path,
                    '`chmod 600 {}`'.format(key.path))
  return ok('kaggle', 'credentials in ' + key.path)
