"""Checks whether there are Kaggle credentials, without showing them.

The module does not import the kaggle package, because this import would sign in to Kaggle.
"""

import json
import os
import stat
from typing import List, Mapping, NamedTuple

from estimator_train.datasets.kaggle_archive import SIGN_IN_REMEDY
from estimator_train.doctor.check_results import CheckResult, ok, warning

_ENVIRONMENT_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')
_IMAGE_REMEDY = '; in the Docker image, give `-v ~/.kaggle:/tmp/.kaggle:ro`'
_ONLY_FOR_OCT2017 = '; only --dataset=oct2017 needs them'


class CredentialSources(NamedTuple):
  """The places where Kaggle credentials were found.

  Attributes:
    variables: which of the environment variables KAGGLE_USERNAME and KAGGLE_KEY are set.
    path: path at which the kaggle package expects the file kaggle.json.
    is_file: whether the file exists.
    is_complete: whether the file can be read, and has both a user name and a key.
    is_exposed: whether other users may read the file.
  """
  variables: List[str]
  path: str
  is_file: bool
  is_complete: bool
  is_exposed: bool


def find_credentials(environment: Mapping[str, str]) -> CredentialSources:
  """Searches for credentials where the kaggle package searches for them."""
  path = os.path.join(_config_folder(environment), 'kaggle.json')
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
  return CredentialSources([name for name in _ENVIRONMENT_VARIABLES if environment.get(name)], path,
                           is_file, is_complete, is_exposed)


def _config_folder(environment: Mapping[str, str]) -> str:
  """Returns the folder in which the kaggle package expects kaggle.json."""
  config_dir = environment.get('KAGGLE_CONFIG_DIR')
  if config_dir:
    return config_dir
  home = os.path.expanduser('~')
  default = os.path.join(home, '.kaggle')
  if os.path.exists(default):
    return default
  # Newer releases of the package use this folder if the default folder does not exist.
  xdg_folder = os.path.join(environment.get('XDG_CONFIG_HOME') or os.path.join(home, '.config'),
                            'kaggle')
  return xdg_folder if os.path.exists(xdg_folder) else default


def check_credentials(sources: CredentialSources, is_needed: bool,
                      in_image: bool = False) -> CheckResult:
  """Checks that credentials exist if they are needed, and that they are complete and private.

  Args:
    sources: the places where credentials were found.
    is_needed: whether the run downloads from Kaggle.
    in_image: whether the program runs in the Docker image, from which the home folder of the user
      cannot be accessed.
  """
  if len(sources.variables) == len(_ENVIRONMENT_VARIABLES):
    return ok('kaggle', 'credentials in the environment')
  if sources.variables:
    return warning('kaggle', '{} is set without the other variable'.format(sources.variables[0]),
                    'set both ' + ' and '.join(_ENVIRONMENT_VARIABLES))
  if not sources.is_file:
    if is_needed:
      return warning('kaggle', 'no credentials',
                     SIGN_IN_REMEDY + (_IMAGE_REMEDY if in_image else ''))
    return ok('kaggle', 'no credentials' + _ONLY_FOR_OCT2017)
  if not sources.is_complete:
    return warning('kaggle', '{} cannot be read, or lacks username or key'.format(sources.path),
                    SIGN_IN_REMEDY)
  if sources.is_exposed:
    return warning('kaggle', 'other users may read ' + sources.path,
                    '`chmod 600 {}`'.format(sources.path))
  return ok('kaggle', 'credentials in ' + sources.path)
