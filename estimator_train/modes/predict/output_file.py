"""Writes predictions as JSON lines or CSV, to a file or to standard output."""

import contextlib
import csv
import io
import json
import logging
import os
import stat
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.system import storage

_LOG = logging.getLogger('estimator_train')
STANDARD_OUTPUT = '-'


def check_path(output: str) -> None:
  """Raises a UserError if `--output` cannot be written."""
  if output == STANDARD_OUTPUT:
    return
  path = os.path.realpath(output)
  folder = os.path.dirname(path)
  reason = None
  if not os.path.isdir(folder):
    reason = 'the folder {} does not exist'.format(folder)
  elif not os.access(folder, os.W_OK | os.X_OK):
    reason = 'no permission to write to {}'.format(folder)
  elif os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
    reason = 'not a regular file'
  if reason:
    raise UserError('--output cannot be written', '{} ({})'.format(output, reason),
                    'give a file in an existing folder, or - for standard output')


class Column(NamedTuple):
  """A column of a CSV file.

  Attributes:
    keys: the keys and indices that lead from a prediction to the value of the cell.
  """
  name: str
  keys: Sequence[Union[str, int]]

  def make_cell(self, prediction: Dict[str, Any]) -> Any:
    """Returns the cell of a prediction; '' if the prediction has no such value."""
    value: Any = prediction
    for key in self.keys:
      try:
        value = value[key]
      except LookupError:
        return ''
    return storage.csv_cell(json.dumps(value) if isinstance(value, list) else value)


class PredictionWriter:
  """Writes and counts predictions.

  Args:
    file: a text file; None for standard output.
    columns: the columns of the CSV file; None for JSON lines.

  Attributes:
    num_errors: the number of files and examples that have an error in place of a prediction.
    first_error: (file name or example, reason); None if there is no error.
  """

  def __init__(self, file: Any, columns: Optional[Sequence[Column]]) -> None:
    self.num_predicted = 0
    self.num_errors = 0
    self.first_error: Optional[Tuple[str, str]] = None
    self._file = file
    self._columns = columns
    if columns is not None:
      csv.writer(file).writerow([storage.csv_cell(column.name) for column in columns])

  def write(self, prediction: Dict[str, Any]) -> None:
    """Writes a prediction, or an error in its place."""
    reason = prediction.get('error')
    if reason is None:
      self.num_predicted += 1
    else:
      self.num_errors += 1
      name = prediction.get('file', 'example {}'.format(prediction.get('example')))
      self.first_error = self.first_error or (name, reason)
      _LOG.warning('cannot predict %r (%s)', name, reason)
    if self._columns is None:
      print(json.dumps(prediction), file=self._file)
    else:
      csv.writer(self._file).writerow([column.make_cell(prediction) for column in self._columns])

  def flush(self) -> None:
    print(end='', file=self._file, flush=True)


@contextlib.contextmanager
def open_writer(output: str, columns: Sequence[Column]) -> Iterator[PredictionWriter]:
  """Opens `--output` for predictions. The file has a temporary name until it is complete.

  Args:
    output: `--output`. The format is CSV if the name ends with `.csv`, and otherwise JSON lines.

  Raises:
    UserError: the output cannot be written.
  """
  try:
    if output == STANDARD_OUTPUT:
      yield PredictionWriter(None, None)
      return
    with storage.open_atomic(os.path.realpath(output)) as file:
      # surrogateescape restores the bytes of file names that are not valid UTF-8.
      text = io.TextIOWrapper(file, 'utf-8', 'surrogateescape', newline='')
      yield PredictionWriter(text, columns if output.lower().endswith('.csv') else None)
      text.detach()  # Flushes the text without closing the file.
  except BrokenPipeError:
    raise  # The reader of standard output closed the pipe; `__main__` handles this error.
  except OSError as error:
    raise UserError('--output cannot be written',
                    '{} ({})'.format(output, error.strerror or error),
                    'free disk space, or give another file') from error
