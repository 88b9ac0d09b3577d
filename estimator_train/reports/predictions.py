"""Predictions as JSON lines or CSV, written as they come."""

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


def check_output(output: str) -> None:
  """Raises a UserError when there is no writing to `--output`."""
  if output == STANDARD_OUTPUT:
    return
  path = os.path.realpath(output)
  folder = os.path.dirname(path)
  why = None
  if not os.path.isdir(folder):
    why = 'there is no folder {}'.format(folder)
  elif not os.access(folder, os.W_OK | os.X_OK):
    why = 'no permission to write to {}'.format(folder)
  elif os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
    why = 'it is no file'
  if why:
    raise UserError('--output cannot be written', '{} ({})'.format(output, why),
                    'give a file in a folder that is there, or - for standard output')


class Predictions:
  """Writes predictions, and counts them.

  Args:
    file: where to; None: standard output.
    as_csv: whether as CSV, not as JSON lines.
    labels: the class names.

  Attributes:
    predicted: the number of images.
    bad: the number of files that could not be read, or not to their end.
    first_bad: the first of these and why; None without one.
  """

  def __init__(self, file: Optional[TextIO], as_csv: bool, labels: Sequence[str]) -> None:
    self.predicted = 0
    self.bad = 0
    self.first_bad: Optional[Tuple[str, str]] = None
    self._file = file
    self._labels = labels
    self._as_csv = as_csv
    self._top_k = min(TOP_K, len(labels))
    if as_csv:
      self._write_row(['file', 'label', 'probability'] + [
          'top{}_{}'.format(place + 1, what) for place in range(self._top_k)
          for what in ('label', 'probability')] + ['error'])

  def add(self, name: bytes, outputs: np.ndarray) -> None:
    """Writes what the model's outputs, [num_classes], say of an image."""
    if not np.isfinite(outputs).all():
      self.add_bad(name, 'the model\'s outputs are not finite')
      return
    self.predicted += 1
    probabilities = as_probabilities(outputs)
    # Of equal ones the first, as in an evaluation.
    best = np.argsort(-outputs, kind='mergesort')[:self._top_k]
    top = [(self._labels[index], float(probabilities[index])) for index in best]
    if self._as_csv:
      self._write_row([_text(name), *top[0]] + [cell for pair in top for cell in pair] + [''])
    else:
      pairs = [{'label': label, 'probability': probability} for label, probability in top]
      self._write_json({'file': _text(name), **pairs[0], 'top': pairs})

  def add_bad(self, name: bytes, reason: str) -> None:
    """Writes that there is no prediction, or no further, of a file."""
    self.bad += 1
    self.first_bad = self.first_bad or (_text(name), reason)
    _LOG.warning('cannot predict %r (%s)', _text(name), reason)
    if self._as_csv:
      self._write_row([_text(name)] + [''] * (2 + 2 * self._top_k) + [reason])
    else:
      self._write_json({'file': _text(name), 'error': reason})

  def flush(self) -> None:
    """Hands on what has been written."""
    print(end='', file=self._file, flush=True)

  def _write_json(self, line: Dict[str, Any]) -> None:
    print(json.dumps(line), file=self._file)

  def _write_row(self, row: List[Any]) -> None:
    csv.writer(self._file).writerow(row)  # type: ignore


@contextlib.contextmanager
def write_to(output: str, labels: Sequence[str]) -> Iterator[Predictions]:
  """Writes predictions to `--output`, which gets its name when it is whole.

  Raises:
    UserError: it cannot be written.
  """
  try:
    if output == STANDARD_OUTPUT:
      yield Predictions(None, False, labels)
      return
    with atomic.open_aside(os.path.realpath(output)) as file:
      # Bytes of names that are no text come out as they are.
      text = io.TextIOWrapper(file, 'utf-8', 'surrogateescape', newline='')
      yield Predictions(text, output.lower().endswith('.csv'), labels)
      text.detach()  # Which flushes it.
  except BrokenPipeError:
    raise  # Who reads standard output has had enough.
  except OSError as error:
    raise UserError('--output cannot be written',
                    '{} ({})'.format(output, error.strerror or error),
                    'give a file with room for it') from error


def _text(name: bytes) -> str:
  """Returns a name of a file as text; `encode('utf-8', 'surrogateescape')` gives it back."""
  return name.decode('utf-8', 'surrogateescape')
