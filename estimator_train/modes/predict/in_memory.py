"""Reads the examples to predict from arrays, columns and rows that a Python program has in memory.

The name of an example is its index.
"""

import collections.abc
import contextlib
import logging
import math
import os
from typing import Any, Dict, Generator, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ImageShape, decoding
from estimator_train.distribution import devices
from estimator_train.errors import UserError, join_items
from estimator_train.modes.predict import rows
from estimator_train.modes.predict.images import ExampleOrError
from estimator_train.modes.predict.row_inputs import RowInput

_LOG = logging.getLogger('estimator_train')


def find_patterns(values: Any) -> Optional[List[str]]:
  """Returns the paths and patterns in a list; None if the values are no such list."""
  if isinstance(values, (list, tuple)) and values and all(
      isinstance(value, (str, os.PathLike)) for value in values):
    return list(map(os.fspath, values))
  return None


def read_images(values: Any,
                image_shape: ImageShape) -> Generator[ExampleOrError, None, None]:
  """Returns an iterator over images, which are resized as in an evaluation.

  Args:
    values: a uint8 array, or a list of uint8 arrays with an image each; see
      `estimator_train.predict`.
    image_shape: the shape of the model's images.

  Raises:
    UserError: the values are no images.
  """
  images = _split_into_images(values, image_shape)

  def make_examples() -> Generator[ExampleOrError, None, None]:
    with _open_resize_function(image_shape) as resize:
      for index, image in enumerate(images):
        yield ExampleOrError(index, [resize(image)])

  return make_examples()


def _split_into_images(values: Any, image_shape: ImageShape) -> Sequence[np.ndarray]:
  """Returns the images, uint8 [height, width, 1 or 3] each."""
  if isinstance(values, (list, tuple)):
    return [_add_channel(_check_image(_restore_shape(image, 1, image_shape), 3))
            for image in values]
  values = _check_image(_restore_shape(values, 2, image_shape), 4)
  is_single = values.ndim == 2 or values.ndim == 3 and values.shape[-1] in (1, 3)
  if values.ndim == 2 and values.shape != image_shape[:2]:
    _LOG.warning('input has the shape %s, which is one image, and is resized to %s: give '
                 '[N, height, width] for several images', list(values.shape), list(image_shape))
  images = values[np.newaxis] if is_single else values
  return images if images.ndim == 4 else images[..., np.newaxis]


def _restore_shape(values: Any, max_rank: int, image_shape: ImageShape) -> Any:
  """Returns flattened images of the model's size, [N, size] or [size], in the shape of images."""
  if isinstance(values, np.ndarray) and 1 <= values.ndim <= max_rank and (
      values.shape[-1] == int(np.prod(image_shape))):
    return values.reshape(values.shape[:-1] + tuple(image_shape))
  return values


def _check_image(image: Any, max_rank: int) -> np.ndarray:
  """Returns the image if it is an array of an image or, with 4 as `max_rank`, of a batch."""
  if not isinstance(image, np.ndarray):
    raise UserError('the model takes images', 'input has an object of the class {}'.format(
        type(image).__name__), 'give NumPy arrays, for example np.asarray(picture.convert("RGB")) '
                               'for a picture of Pillow, or paths of files')
  if image.dtype != np.uint8:
    raise UserError('images must be arrays of uint8 with values from 0 to 255',
                    'input has the dtype {}'.format(image.dtype),
                    'convert it, for example by ' + (
                        'images.astype("uint8")' if image.dtype.kind in 'iu' else
                        '(images * 255).astype("uint8") if the values are from 0 to 1'))
  has_valid_rank = 2 <= image.ndim <= max_rank
  has_valid_channels = image.ndim < max_rank or image.shape[-1] in (1, 3)
  if not (has_valid_rank and has_valid_channels and (image.size or not image.shape[0])):
    raise UserError('images must have the shape [height, width] or [height, width, 1 or 3], and a '
                    'batch of them one more dimension',
                    'input has the shape {}'.format(list(image.shape)), 'reshape it')
  return image


def _add_channel(image: np.ndarray) -> np.ndarray:
  return image if image.ndim == 3 else image[..., np.newaxis]


@contextlib.contextmanager
def _open_resize_function(image_shape: ImageShape) -> Iterator[Any]:
  """Yields a function from an image, uint8 [any, any, 1 or 3], to float32 of the model's size."""
  height, width, channels = image_shape
  with tf.Graph().as_default() as graph:
    image = tf.placeholder(tf.uint8, [None, None, None])
    resized = decoding.resize(image, height, width)
    gray = tf.image.rgb_to_grayscale(resized)
  # As in decoding.ImageFunction, the calling thread runs the operations.
  session = tf.Session(graph=graph, config=devices.make_cpu_config(inter_op_parallelism_threads=-1))
  resize, resize_to_gray = (session.make_callable(tensor, [image]) for tensor in (resized, gray))
  try:
    yield lambda pixels: (
        resize_to_gray if (channels, pixels.shape[2]) == (1, 3) else resize)(pixels)
  finally:
    session.close()


def read_rows(values: Any, inputs: Dict[str, RowInput]) -> Iterator[ExampleOrError]:
  """Returns an iterator over rows, some of which may have errors.

  Args:
    values: columns, rows or an array; see `estimator_train.predict`.

  Raises:
    UserError: there is no column for an input, or the columns differ in length.
  """
  return (ExampleOrError(index, rows.convert_row(row, inputs))
          for index, row in enumerate(_split_into_rows(values, inputs)))


def _split_into_rows(values: Any, inputs: Dict[str, RowInput]) -> Iterator[Dict[str, Any]]:
  if hasattr(values, 'to_dict') and hasattr(values, 'columns'):  # A data frame of pandas.
    values = values.to_dict('list')
  if isinstance(values, (list, tuple)) and all(
      isinstance(row, collections.abc.Mapping) for row in values):
    return ({name: _to_python(row[name]) for name in inputs if name in row} for row in values)
  if not isinstance(values, collections.abc.Mapping):
    if len(inputs) > 1:
      raise UserError('a model with several inputs takes columns or rows by their names',
                      'inputs {}, but input is a {}'.format(join_items(list(inputs)),
                                                            type(values).__name__),
                      'give a dict of arrays, a data frame, or a list of dicts')
    values = dict.fromkeys(inputs, values)
  names, columns = _check_columns(values, inputs)
  return (dict(zip(names, map(_to_python, cells))) for cells in zip(*columns))


def _check_columns(values: Mapping[str, Any],
                   inputs: Dict[str, RowInput]) -> Tuple[List[str], List[Any]]:
  """Returns the names of the inputs, and their columns."""
  missing = [name for name in inputs if name not in values]
  if missing:
    raise UserError('the input must have a column for each input of the model',
                    'no {} among the columns {}'.format(join_items(missing),
                                                        join_items(list(map(str, values)))),
                    'name the columns like the inputs of the model')
  columns = [values[name] for name in inputs]
  lengths = [None if isinstance(column, (str, bytes)) or not hasattr(column, '__len__')
             or getattr(column, 'shape', None) == () else len(column) for column in columns]
  if len(set(lengths)) > 1 or None in lengths:
    raise UserError('the columns must be lists or arrays of the same length', ', '.join(
        '{}: {}'.format(name, 'a single value' if length is None else length)
        for name, length in zip(inputs, lengths)), 'give a value per example; a row is [{...}]')
  return list(inputs), columns


def _to_python(value: Any) -> Any:
  """Converts NumPy's scalars, arrays of objects and bytes for `rows.convert_row`."""
  if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf' and value.ndim:
    return value
  if isinstance(value, (np.generic, np.ndarray)):
    value = value.tolist()
  if isinstance(value, (list, tuple)):
    return list(map(_to_python, value))
  if isinstance(value, bytes):
    return value.decode('utf-8', 'surrogateescape')
  if isinstance(value, float) and not math.isfinite(value):
    return rows.NotFinite(value)
  return value
