"""Writes predictions as JSON lines or CSV."""

import contextlib
import csv
import io
import json
import logging
import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Sequence, TextIO, Tuple

import numpy as np

from estimator_train.datasets.description import TOP_K
from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.files.csv_cells import format_cell
from estimator_train.reports.samples import as_probabilities

_LOG = logging.getLogger('estimator_train')
STANDARD_OUTPUT = '-'
# Keys of a prediction that are not outputs. An output of such a name has the key `output_NAME`.
_OTHER_KEYS = ('file', 'example', 'error')
_NOT_FINITE = "the model's outputs are not finite"


def check_output_path(output: str) -> None:
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


def class_columns(source_column: str, class_names: Sequence[str]) -> List[str]:
  """Returns the columns of a CSV file of predicted classes; see make_prediction.

  Args:
    source_column: `file` or `example`, which identifies the example.
    class_names: the names of the classes.
  """
  ranks = range(1, min(TOP_K, len(class_names)) + 1)
  return [source_column, 'label', 'probability'] + [
      'top{}_{}'.format(rank, column) for rank in ranks
      for column in ('label', 'probability')] + ['error']


def output_columns(source_column: str,
                   output_shapes: Dict[str, Sequence[Optional[int]]]) -> List[str]:
  """Returns the columns of a CSV file of outputs: one per number, or one for a higher rank.

  Args:
    source_column: `file` or `example`, which identifies the example.
    output_shapes: the shapes of the outputs for one example, by name.
  """
  columns = [source_column]
  for output, shape in output_shapes.items():
    name = _output_key(output)
    if len(shape) == 1 and shape[0] is not None and shape[0] > 1:
      columns += ['{}_{}'.format(name, index) for index in range(shape[0])]
    else:
      columns.append(name)
  return columns + ['error']


def make_prediction(source: Dict[str, Any], outputs: np.ndarray,
                    class_names: Sequence[str]) -> Dict[str, Any]:
  """Returns the predicted class, with the keys of `source`, `label`, `probability` and `top`.

  If the outputs are not finite, the function returns an error like make_error.

  Args:
    source: identifies the example; see file_source and Source.identify_example.
    outputs: outputs of the model, float [num_classes].
    class_names: the names of the classes, in the order of the outputs.
  """
  if not np.isfinite(outputs).all():
    return make_error(source, _NOT_FINITE)
  probabilities = as_probabilities(outputs)
  # Mergesort is stable: like np.argmax, it chooses the first of several equal outputs.
  top_indices = np.argsort(-outputs, kind='mergesort')[:TOP_K]
  top = [{'label': class_names[index], 'probability': float(probabilities[index])}
         for index in top_indices]
  return {**source, **top[0], 'top': top}


def make_output_prediction(source: Dict[str, Any],
                           outputs: Dict[str, np.ndarray]) -> Dict[str, Any]:
  """Returns the outputs of the model for an example as lists or, of one number, as a number.

  If the outputs are not finite, the function returns an error like make_error.

  Args:
    source: identifies the example; see file_source and Source.identify_example.
    outputs: the outputs of the model by name, [...].
  """
  if not all(np.isfinite(values).all() for values in outputs.values()):
    return make_error(source, _NOT_FINITE)
  return {**source, **{_output_key(name): (values[0] if values.shape == (1,) else values).tolist()
                       for name, values in outputs.items()}}


def _output_key(name: str) -> str:
  return 'output_' + name if name in _OTHER_KEYS else name


def make_error(source: Dict[str, Any], reason: str) -> Dict[str, Any]:
  """Returns an error, to be written instead of a prediction.

  If an idx file cannot be read further, one error replaces all remaining predictions of the file.
  """
  return {**source, 'error': reason}


def file_source(name: bytes) -> Dict[str, Any]:
  """Identifies an example by its file; `PATH:INDEX` is an image or record in a file."""
  # `encode('utf-8', 'surrogateescape')` restores the bytes of the name.
  return {'file': name.decode('utf-8', 'surrogateescape')}


class PredictionWriter:
  """Writes and counts predictions.

  Args:
    file: text file to write to; None for standard output.
    columns: the columns of the CSV file; None: JSON lines are written.

  Attributes:
    num_predicted: number of examples predicted.
    num_errors: number of errors written, one per file or example that has no prediction.
    first_error: (file name or example, reason) of the first error; None if no error was written.
  """

  def __init__(self, file: Optional[TextIO], columns: Optional[Sequence[str]]) -> None:
    self.num_predicted = 0
    self.num_errors = 0
    self.first_error: Optional[Tuple[str, str]] = None
    self._file = file
    self._columns = columns
    if columns is not None:
      csv.writer(file).writerow(map(format_cell, columns))  # type: ignore

  def write(self, prediction: Dict[str, Any]) -> None:
    """Writes a dict that make_prediction, make_output_prediction or make_error returned."""
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
      cells = dict(_iter_cells(prediction))
      csv.writer(self._file).writerow(  # type: ignore
          [format_cell(cells.get(column, '')) for column in self._columns])

  def flush(self) -> None:
    """Flushes the file."""
    print(end='', file=self._file, flush=True)


def _iter_cells(prediction: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
  """Yields the column and the value of each cell of a prediction."""
  for rank, entry in enumerate(prediction.get('top', ()), 1):
    yield from (('top{}_{}'.format(rank, key), value) for key, value in entry.items())
  for name, value in prediction.items():
    if isinstance(value, list) and not any(isinstance(item, (list, dict)) for item in value):
      yield from (('{}_{}'.format(name, index), item) for index, item in enumerate(value))
    yield name, json.dumps(value) if isinstance(value, list) else value


@contextlib.contextmanager
def open_prediction_writer(output: str, columns: Sequence[str]) -> Iterator[PredictionWriter]:
  """Opens `--output` for predictions. The file has a temporary name until it is complete.

  Args:
    output: `--output`. If the name ends with `.csv`, the writer writes CSV, else JSON lines.
    columns: the columns of a CSV file.

  Raises:
    UserError: the output cannot be written.
  """
  try:
    if output == STANDARD_OUTPUT:
      yield PredictionWriter(None, None)
      return
    with atomic.open_atomic(os.path.realpath(output)) as file:
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
