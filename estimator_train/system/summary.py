"""Logs the last lines of a mode: what it has made, where it is, and the next command to type."""

import logging
import os
import shlex
import shutil
import sys
from typing import Iterable, Optional, Tuple

_LOG = logging.getLogger('estimator_train')
# The variable in which run_train.sh states how it was called.
COMMAND_VARIABLE = 'ESTIMATOR_TRAIN_COMMAND'
_INDENT = 14  # Of the texts of a summary.
_BUILD_VARIABLE = 'ESTIMATOR_TRAIN_TF'


def log_summary(title: str, rows: Iterable[Tuple[str, Optional[str]]],
                next_command: Optional[str] = None) -> None:
  """Logs the last lines of a mode.

  Args:
    rows: (name, text), such as the name and the path of a file; None: there is no such file.
    next_command: None if there is none.
  """
  _LOG.info('%s', title)
  for name, text in [*rows, ('next', next_command)]:
    if text is not None:
      _LOG.info('  %-*s %s', _INDENT - 3, name, text, extra={
          'is_verbatim': name == 'next' or ' ' not in text, 'indent': _INDENT})


def program_command() -> str:
  """Returns the command that runs this program as the user has run it, without arguments."""
  build = os.environ.get(_BUILD_VARIABLE)
  command = None if build is None else make_command_of_build(build)
  return _program() if command is None else command


def make_browser_command(path: str) -> str:
  """Returns a command that opens a page in the browser."""
  return 'xdg-open ' + shlex.quote(path)


def make_command_of_build(build: str) -> Optional[str]:
  """Returns the command that uses a build of TensorFlow; None if run_train.sh was not used."""
  if COMMAND_VARIABLE not in os.environ:
    return None
  return '{}={} {}'.format(_BUILD_VARIABLE, shlex.quote(build), _program())


def _program() -> str:
  if COMMAND_VARIABLE in os.environ:
    return shlex.quote(os.environ[COMMAND_VARIABLE])
  if os.path.basename(sys.argv[0]) == 'estimator-train':
    return 'estimator-train'
  found = shutil.which('python')
  is_found = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
  return shlex.quote('python' if is_found else sys.executable) + ' -m estimator_train'
