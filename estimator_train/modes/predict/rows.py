"""Reads rows of CSV and JSON Lines files, and converts them to values of the inputs of a model.

The columns of CSV and the keys of JSON are the names of the inputs; others are ignored. A reader of
each format yields Python values, such as the text of a cell. One function converts these values to
the dtype and shape of the input. If the conversion would change a value, the row has an error.
"""

import collections
import csv
import gzip
import itertools
import json
import os
import reprlib
import sys
import zlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import file_pattern
from estimator_train.errors import join_items
from estimator_train.modes.predict.images import ExampleOrError, find_files
from estimator_train.modes.predict.row_inputs import RowInput
from estimator_train.system import storage

_CSV_EXTENSIONS, _JSON_EXTENSIONS = (b'.csv', b'.csv.gz'), (b'.jsonl', b'.jsonl.gz')
_GZIP_MAGIC = b'\x1f\x8b'
# The csv module of Python before 3.11 rejects NUL. No decoded text contains this character.
_NUL_SUBSTITUTE = '\udc00'
_MAX_DIGITS = 400  # More than any float64 has. Python takes seconds to convert a million digits.
_MAX_EXACT_FLOAT = 2 ** 53  # From this value on, several integers have the same float64.
_MAX_RANK = 32  # The maximum rank of a NumPy array.
_BOOLEAN_WORDS = {'true': True, 'false': False}
_MORE_BOOLEAN_WORDS = {'yes': True, 'no': False}  # Only for inputs of booleans.
_DIFFERENT_LENGTHS = 'the lists have different lengths'
_REPEATED = object()  # The value of a key that occurs in a JSON object more than once.


class NotFinite(float):
  """NaN or an infinity that was written as a word, not as a number that is too large."""


def find_row_files(patterns: Sequence[str]) -> List[bytes]:
  """Returns the files that match the patterns if at least one of them has rows, else [].

  Raises:
    UserError: a pattern has the extension of a file with rows, but no pattern matches a file.
  """
  files = [path for pattern in patterns
           for path in file_pattern.iter_files(pattern, is_wanted=_is_named_as_rows)]
  if not files and any(_is_named_as_rows(os.fsencode(pattern)) for pattern in patterns):
    find_files(patterns)  # Raises an error that explains why there are none.
  return files if any(map(_is_named_as_rows, files)) else []


def _is_named_as_rows(path: bytes) -> bool:
  return path.lower().endswith(_CSV_EXTENSIONS + _JSON_EXTENSIONS)


def read_rows(path: bytes, inputs: Dict[str, RowInput]) -> Iterator[ExampleOrError]:
  """Yields the rows of a file and, if the file is damaged, an error.

  Args:
    path: the path of the file, which may be compressed by gzip.
  """
  try:
    if not _is_named_as_rows(path):
      raise ValueError('the name of a file of rows must end with .csv, .jsonl or these and .gz')
    with _open_text(path) as file:
      is_csv = path.lower().endswith(_CSV_EXTENSIONS)
      for index, row in enumerate(_read_csv(file, inputs) if is_csv else _read_json_lines(file)):
        yield ExampleOrError(b'%s:%d' % (path, index),
                    row if isinstance(row, str) else convert_row(row, inputs))
  except (OSError, EOFError, ValueError, zlib.error) as error:
    yield ExampleOrError(path, getattr(error, 'strerror', None) or str(error))


def _open_text(path: bytes) -> Any:
  """Opens a file as text. Bytes that are not UTF-8 become surrogates, and cause errors later."""
  with storage.open_regular_file(path) as file:
    is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
  return (gzip.open if is_gzip else open)(  # type: ignore[operator]
      path, 'rt', encoding='utf-8-sig', errors='surrogateescape', newline='')


def _read_csv(file: Any, inputs: Dict[str, RowInput]) -> Iterator[Union[Dict[str, str], str]]:
  """Yields the cells of each row by column, or the reason why the row is invalid.

  Empty lines are ignored.

  Raises:
    ValueError: the header is missing, or does not have exactly one column for each input.
  """
  # Without `strict`, a quote at a wrong place would silently change cells.
  reader = csv.reader((line.replace('\0', _NUL_SUBSTITUTE) for line in file), strict=True)
  header: List[str] = []
  while True:
    line_number = reader.line_num + 1
    try:
      cells = _read_cells(reader)
    except StopIteration:
      break
    except csv.Error as error:
      yield 'line {}: {}'.format(line_number, error)
      continue
    if not cells:
      continue
    if not header:
      header = cells
      _check_header(header, inputs)
    elif any(cells[len(header):]):
      yield 'line {}: {} cells, but {} columns'.format(line_number, len(cells), len(header))
    else:
      yield {name: cell.replace(_NUL_SUBSTITUTE, '\0') for name, cell in zip(header, cells)}
  if not header:
    raise ValueError('no header: the first line must name the columns')


def _read_cells(reader: Any) -> List[str]:
  """Returns the next row of a csv.reader, whose cells may be of any size."""
  # The limit is restored, because it applies to the whole process, which may run code of the user.
  limit = csv.field_size_limit(sys.maxsize)
  try:
    return next(reader)
  finally:
    csv.field_size_limit(limit)


def _check_header(header: Sequence[str], inputs: Dict[str, RowInput]) -> None:
  """Raises a ValueError unless there is one column for each input of the model."""
  for problem, names in (
      ('no column', [name for name in inputs if name not in header]),
      ('several columns', [name for name in inputs if header.count(name) > 1])):
    if names:
      raise ValueError('{} for {} (columns: {}): name the columns in the first line'.format(
          problem, join_items(names), join_items(header)))


def _read_json_lines(file: Any) -> Iterator[Union[Dict[str, Any], str]]:
  """Yields the object in each line, or the reason why the line is invalid; ignores empty lines."""
  for line in filter(str.strip, file):
    try:
      row = _decode_json(line)
      yield row if isinstance(row, dict) else 'a line must be a JSON object'
    except ValueError as error:
      yield str(error)


def _make_object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
  """Returns the dict of a JSON object; the value of a repeated key is _REPEATED."""
  values = dict(pairs)
  if len(values) < len(pairs):
    counts = collections.Counter(name for name, _ in pairs)
    values.update((name, _REPEATED) for name, count in counts.items() if count > 1)
  return values


_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object, parse_constant=NotFinite,
    parse_int=lambda text: int(text) if len(text) <= _MAX_DIGITS else float(text))


def _decode_json(text: str) -> Any:
  """Returns the value of a JSON text; raises a ValueError if the text is invalid."""
  try:
    return _DECODER.decode(text)
  except RecursionError:
    raise ValueError('JSON is nested too deeply') from None


def convert_row(row: Dict[str, Any],
                inputs: Dict[str, RowInput]) -> Union[List[np.ndarray], str]:
  """Returns the arrays of all inputs for a row, or the reason why the row is invalid.

  Args:
    row: texts, numbers, lists or numeric arrays by the names of the inputs.
  """
  arrays: List[np.ndarray] = []
  for name, row_input in inputs.items():
    try:
      arrays += _convert_value(row.get(name), row_input)
    except (ValueError, OverflowError) as error:
      return '{}: {}'.format(name, error)
  return arrays


def _convert_value(value: Any, row_input: RowInput) -> List[np.ndarray]:
  """Converts a value of a row to the arrays of an input; see RowInput.convert_to_feed_values.

  Args:
    value: None if the row has no value for the input.

  Raises:
    ValueError, OverflowError: the value does not fit.
  """
  dtype, shape = row_input.tensor.dtype, row_input.shape
  if value is None or (isinstance(value, str) and value == '' and dtype != tf.string):
    raise ValueError('no value')
  if value is _REPEATED:
    raise ValueError('several values')
  # If the input takes a single text, the text is never parsed as a list.
  may_be_list = dtype != tf.string or (shape.rank and shape.num_elements() != 1)
  if isinstance(value, str) and may_be_list and value.lstrip().startswith('['):
    value = _decode_json(value)
  if isinstance(value, np.ndarray):
    if dtype != tf.string and not row_input.is_nested:
      return [_fit_shape(_cast_array(value, dtype), shape)]
    value = value.tolist()
  items, lengths_by_level = _flatten(value)
  if row_input.is_nested:
    return [*_make_length_arrays(lengths_by_level, shape, not items), _make_array(items, dtype)]
  if any(len(set(lengths)) > 1 for lengths in lengths_by_level):
    raise ValueError(_DIFFERENT_LENGTHS)
  return [_fit_shape(_make_array(items, dtype).reshape(
      [lengths[0] for lengths in lengths_by_level]), shape)]


def _fit_shape(array: np.ndarray, shape: tf.TensorShape) -> np.ndarray:
  """Returns an array with the shape of an input; raises a ValueError if it does not fit."""
  if array.size == 1 and shape.num_elements() == 1:
    array = array.reshape(shape.as_list())
  if not shape.is_compatible_with(array.shape):
    raise ValueError('the shape is {}, but the input has {}'.format(
        list(array.shape), shape.as_list()))
  return array


def _cast_array(array: np.ndarray, dtype: tf.DType) -> np.ndarray:
  """Casts an array of numbers; raises a ValueError if a number does not fit."""
  with np.errstate(over='ignore', invalid='ignore'):
    cast = array.astype(dtype.as_numpy_dtype)
  fits = np.isfinite(cast) | ~np.isfinite(array) if dtype.is_floating else cast == array
  if not fits.all():
    raise ValueError('{!r} is no value of {}'.format(array[~fits].tolist()[0], dtype.name))
  return cast


def _make_length_arrays(lengths_by_level: List[List[int]], shape: tf.TensorShape,
                        is_empty: bool) -> List[np.ndarray]:
  """Returns the lengths of the lists of each level as an array. The first array is a scalar.

  Args:
    lengths_by_level: empty lists may lack further levels.
    shape: the shape of the input for one example. A dimension of None permits all lengths.

  Raises:
    ValueError: the lists do not have the shape.
  """
  num_missing = shape.rank - len(lengths_by_level)
  if num_missing and not (is_empty and num_missing > 0):
    raise ValueError('the lists have {} level(s), but the input has {}'.format(
        len(lengths_by_level), shape.as_list()))
  lengths_by_level = lengths_by_level + [[]] * num_missing
  for lengths, size in zip(lengths_by_level, shape.as_list()):
    if size is not None and set(lengths) - {size}:
      raise ValueError('a list has {} items, but the input has {}'.format(
          min(set(lengths) - {size}), shape.as_list()))
  outer, *others = (np.array(lengths, np.int64) for lengths in lengths_by_level)
  return [outer.reshape(()), *others]


def _flatten(value: Any) -> Tuple[List[Any], List[List[int]]]:
  """Returns the items of nested lists, and the lengths of the lists of each level."""
  items: List[Any] = [value]
  lengths_by_level: List[List[int]] = []
  while items and isinstance(items[0], list):
    if set(map(type, items)) != {list} or len(lengths_by_level) == _MAX_RANK:
      raise ValueError(_DIFFERENT_LENGTHS)
    lengths_by_level.append(list(map(len, items)))
    items = list(itertools.chain.from_iterable(items))
  return items, lengths_by_level


def _make_array(items: List[Any], dtype: tf.DType) -> np.ndarray:
  """Returns items as an array [N]; raises a ValueError or OverflowError if an item does not fit."""
  if dtype == tf.string:
    array = np.empty(len(items), object)
    array[:] = list(map(_to_bytes, items))
    return array
  if str in set(map(type, items)):
    words = ({**_BOOLEAN_WORDS, **_MORE_BOOLEAN_WORDS} if dtype == tf.bool
             else _BOOLEAN_WORDS)
    items = [_parse_number(item, words) if isinstance(item, str) else item for item in items]
  if not set(map(type, items)) <= {bool, int, float, NotFinite}:
    raise ValueError('{} is not a number'.format(reprlib.repr(next(
        item for item in items if not isinstance(item, (int, float))))))
  if dtype == tf.bool:
    _check_valid(items, [item in (0, 1) for item in items], 'is neither true nor false')
  elif dtype.is_integer:
    if not set(map(type, items)) <= {bool, int}:
      items = list(map(_to_integer, items))
    low, high = int(dtype.min), int(dtype.max)
    if items and not low <= min(items) <= max(items) <= high:
      _check_valid(items, [low <= item <= high for item in items],
                   'is not in the range of {}'.format(dtype.name))
  else:
    with np.errstate(over='ignore'):
      array = np.array(items, np.float64).astype(dtype.as_numpy_dtype)
    if np.isinf(array).any():
      _check_valid(items, [isinstance(item, NotFinite) or not is_infinite
                           for item, is_infinite in zip(items, np.isinf(array))],
                   'is not in the range of {}'.format(dtype.name))
    return array
  return np.array(items, dtype.as_numpy_dtype)


def _check_valid(items: Sequence[Any], validity: Sequence[bool], problem: str) -> None:
  """Raises a ValueError about the first item that is not valid."""
  for item, is_valid in zip(items, validity):
    if not is_valid:
      raise ValueError('{} {}'.format(reprlib.repr(item), problem))


def _to_bytes(item: Any) -> bytes:
  """Returns a text as UTF-8. An integer in JSON is converted to text, as it would be in CSV."""
  if type(item) not in (str, int):
    raise ValueError('{} is not a text'.format(reprlib.repr(item)))
  try:
    return str(item).encode('utf-8')
  except UnicodeEncodeError:
    raise ValueError('{} is not valid Unicode'.format(reprlib.repr(item))) from None


def _parse_number(text: str, words: Dict[str, bool]) -> float:
  """Returns the number in a text, or the boolean of a word; raises a ValueError for others."""
  word = text.strip().lower()
  if word in words:
    return words[word]
  try:
    if '_' in word:  # Python would ignore the underscore.
      raise ValueError
    if len(word) <= _MAX_DIGITS:
      try:
        return int(word)
      except ValueError:
        pass
    number = float(word)
  except ValueError:
    raise ValueError('{} is not a number'.format(reprlib.repr(text))) from None
  has_digits = any(character.isdigit() for character in word)
  return number if has_digits else NotFinite(number)


def _to_integer(item: float) -> int:
  """Converts a number to the equal integer; raises a ValueError unless exactly one is equal."""
  if isinstance(item, int):
    return item
  if not item.is_integer():
    raise ValueError('{!r} is not an integer'.format(item))
  if abs(item) >= _MAX_EXACT_FLOAT:
    raise ValueError('{!r} may have lost digits: write all digits'.format(item))
  return int(item)
