"""Reads rows without labels, of CSV files with a header and of JSON Lines files.

A row has a value for each input of the model, by its name. Other columns are ignored.
"""

import csv
import json
import os
from typing import Any, Dict, Iterator, List, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import file_pattern
from estimator_train.errors import UserError, join_items, printable
from estimator_train.modes.predict.input_images import Entry, find_input_files

_EXTENSIONS = (b'.csv', b'.jsonl')


def find_files(patterns: str) -> List[bytes]:
  """Returns the files of rows that `--input` names; [] if its files are of another kind.

  Raises:
    UserError: there is no such file.
  """
  files = [path for pattern in file_pattern.split_patterns(patterns)
           for path in file_pattern.iter_files(pattern, of_folder=_has_rows)]
  if not files and _has_rows(os.fsencode(patterns)):
    find_input_files(patterns)  # Raises an error that explains why there are none.
  return files if all(map(_has_rows, files)) else []


def _has_rows(name: bytes) -> bool:
  return name.lower().endswith(_EXTENSIONS)


def read_rows(path: bytes, inputs: Dict[str, tf.Tensor]) -> Iterator[Entry]:
  """Yields the rows of a file and, if it cannot be read further, the reason at the end.

  Args:
    path: the path of the file.
    inputs: the inputs of the model by name, [B, ...].

  Raises:
    UserError: a CSV file has no column for an input.
  """
  try:
    with open(path, encoding='utf-8-sig', newline='') as file:
      lines: Any = filter(str.strip, file)
      if path.lower().endswith(b'.csv'):
        lines = csv.DictReader(file)
        missing = [name for name in inputs if name not in (lines.fieldnames or ())]
        if missing:
          raise UserError('a CSV file must have a column for each input of the model',
                          '{} has no {} (columns: {})'.format(
                              printable(os.fsdecode(path)), join_items(missing),
                              join_items(lines.fieldnames or ())),
                          'name the columns in the first line of the file')
      for index, line in enumerate(lines):
        yield Entry(b'%s:%d' % (path, index), _parse_row(line, inputs))
  except (OSError, ValueError, csv.Error) as error:
    yield Entry(path, getattr(error, 'strerror', None) or str(error))


def _parse_row(line: Any, inputs: Dict[str, tf.Tensor]) -> Union[List[np.ndarray], str]:
  """Returns the values of a line of JSON or a dict of texts, or else why there are none."""
  try:
    row = json.loads(line) if isinstance(line, str) else line
    if not isinstance(row, dict):
      return 'a line must be a JSON object'
    return [_parse_value(name, row.get(name), tensor) for name, tensor in inputs.items()]
  except ValueError as error:
    return str(error)


def _parse_value(name: str, value: Any, tensor: tf.Tensor) -> np.ndarray:
  """Returns the value of an input; raises a ValueError if it is missing or does not fit."""
  if value is None:
    raise ValueError('no value for {}'.format(name))
  shape, is_text = tensor.shape[1:], tensor.dtype == tf.string
  try:
    if isinstance(value, str) and shape.rank and value.startswith('['):
      value = json.loads(value)  # Several numbers in a cell of a CSV file.
    array = np.array(value, np.str_ if is_text else tensor.dtype.as_numpy_dtype)
    if tensor.dtype.is_integer and not isinstance(value, str) and not np.array_equal(array, value):
      raise ValueError('{!r} is not an integer'.format(value))
  except (TypeError, ValueError) as error:
    raise ValueError('{}: {}'.format(name, error)) from error
  if array.size == 1 and shape.num_elements() == 1:
    array = array.reshape(shape.as_list())
  if not shape.is_compatible_with(array.shape):
    raise ValueError('{} has the shape {}, but the input has {}'.format(
        name, list(array.shape), shape.as_list()))
  return array.astype(object) if is_text else array
