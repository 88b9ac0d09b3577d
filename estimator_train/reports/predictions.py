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
    self._class_names = class_names
    self._as_csv = as_csv
    self._top_k = min(TOP_K, len(class_names))
    if as_csv:
      self._write_row(['file', 'label', 'probability'] + [
          'top{}_{}'.format(rank + 1, column) for rank in range(self._top_k)
          for column in ('label', 'probability')] + ['error'])

  def write_prediction(self, name: bytes, outputs: np.ndarray) -> None:
    """Writes the prediction of an image.

    Args:
      name: path of the image; in an idx file, the path, `:` and the index of the image.
      outputs: outputs of the model, float [num_classes].
    """
    if not np.isfinite(outputs).all():
      self.write_error(name, 'the model\'s outputs are not finite')
      return
    self.num_predicted += 1
    probabilities = as_probabilities(outputs)
    # Mergesort is stable: like np.argmax, it chooses the first of several equal outputs.
    top_indices = np.argsort(-outputs, kind='mergesort')[:self._top_k]
    top = [(self._class_names[index], float(probabilities[index])) for index in top_indices]
    if self._as_csv:
      self._write_row(
          [_decode_name(name), *top[0]] + [cell for pair in top for cell in pair] + [''])
    else:
      pairs = [{'label': class_name, 'probability': probability}
               for class_name, probability in top]
      self._write_json({'file': _decode_name(name), **pairs[0], 'top': pairs})

  def write_error(self, name: bytes, reason: str) -> None:
    """Writes an error in place of a prediction, or of the remaining predictions of an idx file."""
    self.num_errors += 1
    self.first_error = self.first_error or (_decode_name(name), reason)
    _LOG.warning('cannot predict %r (%s)', _decode_name(name), reason)
    if self._as_csv:
      self._write_row([_decode_name(name)] + [''] * (2 + 2 * self._top_k) + [reason])
    else:
      self._write_json({'file': _decode_name(name), 'error': reason})

  def flush(self) -> None:
    """Flushes the file."""
    print(end='', file=self._file, flush=True)

  def _write_json(self, line: Dict[str, Any]) -> None:
    print(json.dumps(line), file=self._file)

  def _write_row(self, row: List[Any]) -> None:
    csv.writer(self._file).writerow(row)  # type: ignore


@contextlib.contextmanager
def open_prediction_writer(output: str, class_names: Sequence[str]) -> Iterator[PredictionWriter]:
  """Opens `--output` for predictions. The file gets its name only when it is complete.

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
