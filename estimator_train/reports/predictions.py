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
from estimator_train.reports.samples import as_probabilities

_LOG = logging.getLogger('estimator_train')
STANDARD_OUTPUT = '-'


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


def make_prediction(name: bytes, outputs: np.ndarray,
                    class_names: Sequence[str]) -> Dict[str, Any]:
  """Returns the prediction of an image, with the keys `file`, `label`, `probability` and `top`.

  If the outputs are not finite, the function returns an error like make_error.

  Args:
    name: path of the image, or `PATH:INDEX` for an image in an idx file.
    outputs: outputs of the model, float [num_classes].
    class_names: the names of the classes, in the order of the outputs.
  """
  if not np.isfinite(outputs).all():
    return make_error(name, 'the model\'s outputs are not finite')
  probabilities = as_probabilities(outputs)
  # Mergesort is stable: like np.argmax, it chooses the first of several equal outputs.
  top_indices = np.argsort(-outputs, kind='mergesort')[:TOP_K]
  top = [{'label': class_names[index], 'probability': float(probabilities[index])}
         for index in top_indices]
  return {'file': _decode_name(name), **top[0], 'top': top}


def make_error(name: bytes, reason: str) -> Dict[str, Any]:
  """Returns an error, to be written instead of a prediction.

  If an idx file cannot be read further, one error replaces all remaining predictions of the file.
  """
  return {'file': _decode_name(name), 'error': reason}


class PredictionWriter:
  """Writes and counts predictions.

  Args:
    file: text file to write to; None for standard output.
    as_csv: whether to write CSV instead of JSON lines.
    class_names: class names, by class index.

  Attributes:
    num_predicted: number of images predicted.
    num_errors: number of errors written, one per file or image that has no prediction.
    first_error: (file name, reason) of the first error; None if no error was written.
  """

  def __init__(self, file: Optional[TextIO], as_csv: bool, class_names: Sequence[str]) -> None:
    self.num_predicted = 0
    self.num_errors = 0
    self.first_error: Optional[Tuple[str, str]] = None
    self._file = file
    self._as_csv = as_csv
    self._top_k = min(TOP_K, len(class_names))
    if as_csv:
      self._write_row(['file', 'label', 'probability'] + [
          'top{}_{}'.format(rank + 1, column) for rank in range(self._top_k)
          for column in ('label', 'probability')] + ['error'])

  def write(self, prediction: Dict[str, Any]) -> None:
    """Writes a dict that make_prediction or make_error returned."""
    reason = prediction.get('error')
    if reason is None:
      self.num_predicted += 1
    else:
      self.num_errors += 1
      self.first_error = self.first_error or (prediction['file'], reason)
      _LOG.warning('cannot predict %r (%s)', prediction['file'], reason)
    if not self._as_csv:
      print(json.dumps(prediction), file=self._file)
    elif reason is None:
      ranked = [prediction, *prediction['top']]
      self._write_row([prediction['file'], *(cell for entry in ranked for cell in (
          entry['label'], entry['probability'])), ''])
    else:
      self._write_row([prediction['file']] + [''] * (2 + 2 * self._top_k) + [reason])

  def flush(self) -> None:
    """Flushes the file."""
    print(end='', file=self._file, flush=True)

  def _write_row(self, row: List[Any]) -> None:
    csv.writer(self._file).writerow(row)  # type: ignore


@contextlib.contextmanager
def open_prediction_writer(output: str, class_names: Sequence[str]) -> Iterator[PredictionWriter]:
  """Opens `--output` for predictions. The file has a temporary name until it is complete.

  Args:
    output: `--output`. If the name ends with `.csv`, the writer writes CSV, else JSON lines.
    class_names: class names, by class index.

  Raises:
    UserError: the output cannot be written.
  """
  try:
    if output == STANDARD_OUTPUT:
      yield PredictionWriter(None, False, class_names)
      return
    with atomic.open_atomic(os.path.realpath(output)) as file:
      # surrogateescape restores the bytes of file names that are not valid UTF-8.
      text = io.TextIOWrapper(file, 'utf-8', 'surrogateescape', newline='')
      yield PredictionWriter(text, output.lower().endswith('.csv'), class_names)
      text.detach()  # Flushes the text without closing the file.
  except BrokenPipeError:
    raise  # The reader of standard output closed the pipe; `__main__` handles this error.
  except OSError as error:
    raise UserError('--output cannot be written',
                    '{} ({})'.format(output, error.strerror or error),
                    'free disk space, or give another file') from error


def _decode_name(name: bytes) -> str:
  """Decodes a file name so that `encode('utf-8', 'surrogateescape')` restores its bytes."""
  return name.decode('utf-8', 'surrogateescape')
