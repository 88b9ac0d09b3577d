"""Compares the outputs of an exported model with those of the checkpoint.

The examples are random. If the export follows a training run, examples of its data are added. The
more examples there are, the rarer is an error that none of them shows.
"""

import contextlib
import itertools
import logging
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError, first_line
from estimator_train.exporting.restored_model import PICTURES_INPUT, TENSOR_INPUT, RestoredModel
from estimator_train.model import inputs

_LOG = logging.getLogger('estimator_train')
Arrays = Dict[str, np.ndarray]
ModelFunction = Callable[[Arrays], Arrays]  # Takes inputs by name, returns outputs by name.
# The remedy for a model that cannot be converted, or whose exported model is wrong.
OTHER_FORMATS = 'give --export_format=saved_model or h5'
# The allowed largest_difference of an export from the checkpoint. For ResNet-50 in TFLite, the
# difference is 1.1e-5.
TOLERANCE = 1e-4
# Batches of these sizes are always compared. Further batches of random examples and of the data
# follow until the checkpoint has computed for _MAX_SECS. If one of 100 examples shows an error, 256
# random examples find it with a probability of 92 %, but the first four only with 4 %.
_FIRST_BATCH_SIZES = (1, 3)
_BATCH_SIZE, _MAX_RANDOM_BATCHES = 16, 16
_MAX_SECS = 10.
_SEED = 2015
# The size of a dimension that the model does not determine, such as the length of a sequence.
_UNKNOWN_DIMENSION_SIZE = 6
# An integer input may be an index, for example into an embedding, where a large index is an error.
# Random integers are below the first of these limits with which the model runs. If the model runs
# with the largest limit, the input is no index, and the integers are below _NUMBER_LIMIT instead.
_INTEGER_LIMITS = (10 ** 6, 10 ** 5, 10 ** 4, 1000, 100, 10, 2, 1)
_NUMBER_LIMIT = 100
_UNIFORM, _NORMAL, _INTEGERS = 'uniform', 'normal', 'integers'  # The distributions of floats.


class ComparisonBatch(NamedTuple):
  """Examples with which an export is compared.

  Attributes:
    inputs: the inputs of the model, by their names in exports.
    outputs: the outputs of the checkpoint, by their names in exports.
    tolerance: the largest difference that is allowed: TOLERANCE, multiplied by a tenth of the
      largest absolute logit if this is more than 1, because rounding errors grow with the logits.
  """
  inputs: Arrays
  outputs: Arrays
  tolerance: float


def verify(batches: Sequence[ComparisonBatch], load: Callable[[], ModelFunction],
           format_name: str, library: str) -> None:
  """Compares the outputs of an exported model with those of the checkpoint.

  Args:
    batches: the results of make_batches, which must be called before the export.
    library: the library with which `load` loads the exported model, for error messages.

  Raises:
    UserError: the library cannot run the model, or its outputs differ too much.
  """
  try:
    run = load()
    outputs = [run(batch.inputs) for batch in batches]
  except Exception as error:  # The exception classes of the libraries are not public.
    raise UserError('{} cannot run the exported model'.format(library),
                    str(error).strip().partition('\n')[0], OTHER_FORMATS) from error
  counts = [len(next(iter(batch.inputs.values()))) for batch in batches]
  for batch, found, count in zip(batches, outputs, counts):
    difference = compute_largest_difference(batch.outputs, found)
    if not difference <= batch.tolerance:
      raise UserError(
          'the outputs of the {} model must equal those of the checkpoint to {:.3g}'.format(
              format_name, batch.tolerance),
          'difference {:.1e} with {} example(s) in {}'.format(difference, count, library),
          OTHER_FORMATS)
  _LOG.info('the outputs of the %s model equal those of the checkpoint for %d examples',
            format_name, sum(counts))


def compute_largest_difference(expected: Arrays, found: Arrays) -> float:
  """Returns the largest absolute difference between two sets of outputs.

  If an output has values beyond [-1, 1], its differences are divided by its largest absolute value.
  The result is infinite if a value is not finite, an output is missing, or shapes differ.
  """
  largest = 0.
  for name, output in expected.items():
    wanted, actual = np.asarray(output, np.float64), np.asarray(found.get(name))
    if wanted.shape != actual.shape:
      return float('inf')
    difference = np.abs(wanted - actual).max(initial=0) / np.abs(wanted).max(initial=1)
    if not np.isfinite(difference):
      return float('inf')
    largest = max(largest, float(difference))
  return largest


def make_batches(restored: RestoredModel,
                 clock: Callable[[], float] = time.monotonic) -> List[ComparisonBatch]:
  """Makes the batches with which an export of the model is compared.

  Raises:
    UserError: the model fails with all kinds of random inputs.
  """
  batches = [make_batch(restored, size) for size in _FIRST_BATCH_SIZES]
  deadline = clock() + _MAX_SECS
  for batch in _make_more_batches(restored):
    # A model may be undefined for some inputs, as the logarithm is for negative numbers.
    if all(np.isfinite(np.asarray(array, np.float64)).all() for array in batch.outputs.values()):
      batches.append(batch)
    if clock() >= deadline:
      break
  return batches


def _make_more_batches(restored: RestoredModel) -> Iterator[ComparisonBatch]:
  """Yields batches of the data and of random examples in turn, until both have run out."""
  features = iter(restored.features_of_data)
  for index, data in itertools.zip_longest(range(_MAX_RANDOM_BATCHES), features):
    if data is not None:
      yield _run(restored, _to_inputs(restored, data))
    if index is not None:
      with contextlib.suppress(UserError):  # For example, the model may reject negative numbers.
        yield make_batch(restored, _BATCH_SIZE, index + 1)


def make_batch(restored: RestoredModel, batch_size: int, seed: int = 0) -> ComparisonBatch:
  """Makes random examples that the model accepts.

  Args:
    seed: determines the examples. If the seed is even, floats are uniform between 0 and 1. If it is
      odd, floats are normally distributed, or integers if the model fails with normal floats.

  Raises:
    UserError: the model fails with all kinds of random inputs.
  """
  if tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS):  # Vocabularies of feature columns.
    restored.session.run(tf.tables_initializer())
  has_only_floats = all(tensor.dtype.is_floating for tensor in restored.inputs.values())
  for draw in (_NORMAL, _INTEGERS) if seed % 2 else (_UNIFORM,):
    for limit in _INTEGER_LIMITS[-1:] if has_only_floats and draw != _INTEGERS else _INTEGER_LIMITS:
      try:
        batch = _run(restored, _random_inputs(restored, batch_size, seed, draw, limit))
      except tf.errors.InvalidArgumentError as error:
        failure = error
      else:
        return batch if limit != _INTEGER_LIMITS[0] else _run(
            restored, _random_inputs(restored, batch_size, seed, draw, _NUMBER_LIMIT))
  raise UserError('the model must accept random inputs, with which its exports are verified',
                  first_line(failure),
                  'check the inputs in the model, or give another --export_format')


def _run(restored: RestoredModel, inputs: Arrays) -> ComparisonBatch:
  """Computes the outputs of the checkpoint."""
  logits = [tensor.op.inputs[0] for tensor in restored.outputs.values()
            if tensor.op.type == 'Softmax']
  # No operations are added here, because the session would prepare the graph again for each batch.
  outputs, arrays = restored.session.run(
      (restored.outputs, logits),
      {restored.inputs[name]: array for name, array in inputs.items()})
  factor = max([1.] + [np.abs(array).max(initial=0) / 10 for array in arrays])
  return ComparisonBatch(inputs, outputs, TOLERANCE * factor)


def _to_inputs(restored: RestoredModel, features: Any) -> Arrays:
  """Converts a batch of features, as arrays from the data, to inputs by name."""
  if restored.image_shape is not None:
    channels = restored.image_shape[-1]
    pixels = np.broadcast_to(features, features.shape[:-1] + (channels,))
    return _to_image_input(restored, np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
  adapter = inputs.BatchAdapter(restored.keras_model, 'the data')
  arranged = adapter.arrange_features(tf.nest.map_structure(tf.constant, features))
  return dict(zip(restored.inputs, restored.session.run(arranged)))


def _to_image_input(restored: RestoredModel, pixels: np.ndarray) -> Arrays:
  """Returns the input of an image model, by name, for pixel values from 0 to 255."""
  if PICTURES_INPUT in restored.inputs:
    return {PICTURES_INPUT: pixels}
  return {TENSOR_INPUT: restored.session.run(restored.preprocess(tf.constant(pixels)))}


def _random_inputs(restored: RestoredModel, batch_size: int, seed: int, draw: str,
                   integer_limit: int) -> Arrays:
  """Returns random inputs by name. The pixel values of an image model are scaled as it expects.

  Pictures have about twice the height and half the width of the images of the model, so that the
  export must resize them.
  """
  random = np.random.RandomState(_SEED + batch_size + 100 * seed)
  if restored.image_shape is not None:
    height, width, channels = restored.image_shape
    if PICTURES_INPUT in restored.inputs:
      height, width = 2 * height + 1, width // 2 + 1
    return _to_image_input(restored, random.randint(
        0, 256, (batch_size, height, width, channels)).astype(np.uint8))
  return {name: _random_array(random, draw, tensor.dtype, [batch_size] + [
      size or _UNKNOWN_DIMENSION_SIZE for size in tensor.shape.as_list()[1:]], integer_limit)
          for name, tensor in restored.inputs.items()}


def _random_array(random: np.random.RandomState, draw: str, dtype: tf.DType, shape: List[int],
                  integer_limit: int) -> Any:
  """Returns random floats, integers below the limit, or short strings."""
  if dtype.is_floating and draw != _INTEGERS:
    numbers = random.normal(size=shape) if draw == _NORMAL else random.uniform(size=shape)
    return numbers.astype(dtype.as_numpy_dtype)
  limit = 2 if dtype.is_bool else integer_limit
  if dtype.is_integer:
    limit = min(limit, np.iinfo(dtype.as_numpy_dtype).max)
  integers = random.randint(0, limit, shape)
  return (integers.astype(bytes).astype(object) if dtype == tf.string
          else integers.astype(dtype.as_numpy_dtype))
