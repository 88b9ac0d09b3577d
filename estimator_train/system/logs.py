"""Sets up the standard streams of this process, its log, and the log of TensorFlow.

A standard stream may be closed, or may be a file on a full disk. The log of TensorFlow is hidden
unless it is requested.
"""

import contextlib
import io
import logging
import os
import sys
import textwrap
import warnings
from typing import Any, Iterator

from estimator_train.errors import UserError, flags_to_keywords, printable, shorten
from estimator_train.system import machine, progress

CPP_LEVEL_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
_STDIN, _STDOUT, _STDERR = range(3)


def prepare_streams() -> None:
  """Replaces the standard streams, unless the caller has already replaced them.

  If a message cannot be written to standard error, it is lost, and the run continues. If standard
  output cannot be written later, a UserError is raised.

  Raises:
    UserError: standard output is closed.
  """
  _open_if_closed(_STDIN)
  _open_if_closed(_STDERR)
  if sys.stderr is sys.__stderr__:
    sys.stderr = _make_text_stream(_MessageFile(_STDERR, 'w', closefd=False), sys.stderr, True)
  if sys.stdout is None:
    raise UserError('standard output is closed, so that the result would be lost',
                    'standard output', 'redirect it to a file or to /dev/null')
  if sys.stdout is sys.__stdout__:
    sys.stdout = _make_text_stream(
        _ResultFile(_STDOUT, 'w', closefd=False), sys.stdout, sys.stdout.isatty())


class _MessageFile(io.FileIO):
  """A file that discards what it cannot write."""

  def write(self, data: Any) -> int:
    with contextlib.suppress(OSError):
      return super().write(data) or len(data)  # The result is None if a pipe is full.
    return len(data)


class _ResultFile(io.FileIO):
  """A file that raises a UserError if it cannot be written, and then becomes /dev/null."""

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

  Otherwise, TensorFlow could write its log to a file of the run that has this descriptor.
  """
  try:
    os.fstat(descriptor)
  except OSError:
    null_descriptor = os.open(os.devnull, os.O_RDWR)
    if null_descriptor != descriptor:  # A standard stream with a lower descriptor is closed, too.
      os.dup2(null_descriptor, descriptor)
      os.close(null_descriptor)
    os.set_inheritable(descriptor, True)


def _make_text_stream(raw_file: io.FileIO, previous_stream: Any,
                      line_buffering: bool) -> io.TextIOWrapper:
  """Makes a text stream with the encoding of the previous stream; UTF-8 if that is None."""
  return io.TextIOWrapper(
      io.BufferedWriter(raw_file), getattr(previous_stream, 'encoding', 'utf-8'),
      getattr(previous_stream, 'errors', 'backslashreplace'), line_buffering=line_buffering)


def set_up_logging(verbosity: int) -> None:
  """Sends the log of this package to standard error, and silences TensorFlow below verbosity 1."""
  package_log = logging.getLogger('estimator_train')
  package_log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
  package_log.propagate = False
  handler = _Handler(sys.stderr)
  handler.setFormatter(_Formatter())
  package_log.handlers = [handler]
  if verbosity < 1:
    silence_tensorflow()
    warnings.simplefilter('ignore')


class _Handler(logging.StreamHandler):
  """Writes above the progress bars, and shares their lock."""

  def createLock(self) -> None:  # noqa: N802 (It overrides a method.)
    self.lock = progress.OUTPUT_LOCK  # type: ignore

  def emit(self, record: logging.LogRecord) -> None:
    try:
      with progress.write_above_bars():
        super().emit(record)
    except OSError:  # Standard error is closed. The handler of `logging` ignores this, too.
      self.handleError(record)


@contextlib.contextmanager
def show_log_by_default(verbosity: int) -> Iterator[None]:
  """Shows the log of this package in a `with` block as on the command line.

  Has no effect if the user has configured a handler for this log. In a notebook, the messages go to
  standard output, because Jupyter shows standard error as errors.
  """
  package_log = logging.getLogger('estimator_train')
  if package_log.hasHandlers():
    yield
    return
  handler = _Handler(sys.stdout if progress.is_jupyter_kernel() else sys.stderr)
  handler.setFormatter(_Formatter())
  previous_level = package_log.level
  package_log.addHandler(handler)
  if previous_level == logging.NOTSET:
    package_log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
  try:
    yield
  finally:
    package_log.removeHandler(handler)
    package_log.setLevel(previous_level)


@contextlib.contextmanager
def name_keywords() -> Iterator[None]:
  """Makes the messages of this package in a `with` block name keywords instead of flags."""
  package_log = logging.getLogger('estimator_train')
  package_log.addFilter(_translate_to_keywords)
  try:
    yield
  finally:
    package_log.removeFilter(_translate_to_keywords)


def _translate_to_keywords(record: logging.LogRecord) -> bool:
  if not getattr(record, 'is_verbatim', False):
    record.msg, record.args = flags_to_keywords(record.getMessage()), ()
  return True


class _Formatter(logging.Formatter):
  """Marks warnings, and prints each message in one line, because its text may be untrusted.

  On a terminal, a line that is too long is broken between words, unless the record has the
  attribute `is_verbatim`, as those of commands have. The attribute `indent` is the indentation of
  the further lines.
  """

  def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (It overrides a method.)
    prefix = 'warning: ' if record.levelno == logging.WARNING else ''
    line = prefix + shorten(printable(super().formatMessage(record)))
    columns = progress.terminal_columns()
    if columns is None or getattr(record, 'is_verbatim', False):
      return line
    return line if len(line) <= columns else '\n'.join(textwrap.wrap(
        line, columns, subsequent_indent=' ' * getattr(record, 'indent', 2),
        break_long_words=False, break_on_hyphens=False, drop_whitespace=True))


def silence_tensorflow() -> None:
  """Hides TensorFlow's C++ messages except errors. Must run before TensorFlow is imported."""
  # Level 2 shows errors, and level 3 hides them. Without an NVIDIA driver, the errors only concern
  # the missing driver.
  os.environ.setdefault(CPP_LEVEL_VARIABLE, '2' if machine.has_nvidia_driver() else '3')
