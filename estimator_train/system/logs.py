"""Sets up the standard streams of this process, its log, and the log of TensorFlow.

A standard stream may be closed, or may be a file on a full disk. The log of TensorFlow is hidden
unless it is requested.
"""

import contextlib
import io
import logging
import os
import sys
import warnings
from typing import Any

from estimator_train.errors import UserError, printable, shorten
from estimator_train.system import machine

CPP_LEVEL_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
_IN, _OUT, _ERR = range(3)


def prepare_streams() -> None:
  """Replaces the standard streams, unless the caller has replaced them already.

  A message that cannot be written to standard error is lost, and does not end the run.

  Raises:
    UserError: standard output is closed. Later, writing to it raises one if this fails.
  """
  _open_if_closed(_IN)
  _open_if_closed(_ERR)
  if sys.stderr is sys.__stderr__:
    sys.stderr = _wrap(_MessageFile(_ERR, 'w', closefd=False), sys.stderr, line_buffering=True)
  if sys.stdout is None:
    raise UserError('standard output is closed, so that the result would be lost',
                    'standard output', 'redirect it to a file or to /dev/null')
  if sys.stdout is sys.__stdout__:
    sys.stdout = _wrap(_ResultFile(_OUT, 'w', closefd=False), sys.stdout, sys.stdout.isatty())


class _MessageFile(io.FileIO):
  """A file that discards what it cannot write."""

  def write(self, data: Any) -> int:
    with contextlib.suppress(OSError):
      return super().write(data) or len(data)  # The result is None if a pipe is full.
    return len(data)


class _ResultFile(io.FileIO):
  """A file that raises a UserError if it cannot be written, and is /dev/null from then on."""

  def write(self, data: Any) -> int:
    try:
      return super().write(data)
    except OSError as error:
      # When the process ends, Python writes the rest of its buffer. This must not fail again.
      os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
      if isinstance(error, BrokenPipeError):  # The reader, such as `head`, has ended.
        raise
      raise UserError('cannot write to standard output', error.strerror,
                      'free some space, or redirect the output to another disk') from error


def _open_if_closed(descriptor: int) -> None:
  """Opens /dev/null in place of a closed standard stream.

  Otherwise, a file of the run could get this descriptor, and TensorFlow would write its log to it.
  """
  try:
    os.fstat(descriptor)
  except OSError:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:  # A standard stream with a lower descriptor is closed, too.
      os.dup2(null, descriptor)
      os.close(null)
    os.set_inheritable(descriptor, True)


def _wrap(file: io.FileIO, previous: Any, line_buffering: bool) -> io.TextIOWrapper:
  """Returns a text stream with the encoding of the previous stream; UTF-8 if that is None."""
  return io.TextIOWrapper(
      io.BufferedWriter(file), getattr(previous, 'encoding', 'utf-8'),
      getattr(previous, 'errors', 'backslashreplace'), line_buffering=line_buffering)


def set_up(verbosity: int) -> None:
  """Sends the log of this package to standard error. Silences TensorFlow below verbosity 1."""
  log = logging.getLogger('estimator_train')
  log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
  log.propagate = False
  handler = logging.StreamHandler(sys.stderr)
  handler.setFormatter(_Formatter())
  log.handlers = [handler]
  if verbosity < 1:
    silence_tensorflow()
    warnings.simplefilter('ignore')


class _Formatter(logging.Formatter):
  """Marks warnings, and makes one line of each message, which may contain untrusted text."""

  def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (It overrides a method.)
    prefix = 'warning: ' if record.levelno == logging.WARNING else ''
    return prefix + shorten(printable(super().formatMessage(record)))


def silence_tensorflow() -> None:
  """Hides TensorFlow's C++ messages except errors. Must run before TensorFlow is imported."""
  # Level 2 shows errors, and level 3 hides them. Without an NVIDIA driver, errors are hidden,
  # because they only concern the missing driver.
  os.environ.setdefault(CPP_LEVEL_VARIABLE, '2' if machine.has_nvidia_driver() else '3')
