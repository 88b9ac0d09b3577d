"""Compares the outputs of an exported model with those of the checkpoint.

The comparison uses random examples and, after a training run, also examples of its data. With
more examples, it is less likely that an error is not noticed.
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
# Batches of these sizes are always compared. Further batches follow until the checkpoint has
# computed for _MAX_SECS. If one of 100 examples shows an error, 256 random examples find it with a
# probability of 92 %, but the first four examples only with 4 %.
_FIRST_BATCH_SIZES = (1, 3)
_BATCH_SIZE, _MAX_RANDOM_BATCHES = 16, 16
_MAX_SECS = 10.
_SEED = 2015
# The size of a dimension that the model does not determine, such as the length of a sequence.
_UNKNOWN_DIMENSION_SIZE = 6
# An integer input may be an index, for example into an embedding, where a large index is an error.
# Random integers are below the largest of these limits with which the model runs. If this is the
# first limit, the input is not an index, and the integers are below _NUMBER_LIMIT instead.
_INTEGER_LIMITS = (10 ** 6, 10 ** 5, 10 ** 4, 1000, 100, 10, 2, 1)
_NUMBER_LIMIT = 100
_UNIFORM, _NORMAL, _INTEGERS = 'uniform', 'normal', 'integers'  # Distributions of float inputs.


class ComparisonBatch(NamedTuple):
  """Examples with which an export is compared.

  Attributes:
    inputs: the inputs of the model, by their names in exports.
    outputs: the outputs of the checkpoint, by their names in exports.
    tolerance: the largest allowed difference. It is TOLERANCE if all absolute logits are at most
      10. Above that, it grows in proportion to the largest of them, like rounding errors.
  """
  inputs: Arrays
  outputs: Arrays
  tolerance: float


def verify(batches: Sequence[ComparisonBatch], load_model: Callable[[], ModelFunction],
           format_name: str, library: str) -> None:
  """Compares the outputs of an exported model with those of the checkpoint.

  Args:
    batches: the results of make_batches, which must be called before the export.
    library: the name of the library that `load_model` uses, for error messages.

  Raises:
    UserError: the library cannot run the model, or its outputs differ too much.
  """
  try:
    compute_outputs = load_model()
    outputs = [compute_outputs(batch.inputs) for batch in batches]
  except Exception as error:  # The exception classes of the libraries are not public.
    raise UserError('{} cannot run the exported model'.format(library),
                    str(error).strip().partition('\n')[0], OTHER_FORMATS) from error
  counts = [len(next(iter(batch.inputs.values()))) for batch in batches]
  for batch, exported_outputs, count in zip(batches, outputs, counts):
    difference = compute_largest_difference(batch.outputs, exported_outputs)
    if not difference <= batch.tolerance:
      raise UserError(
          'the outputs of the {} model must equal those of the checkpoint to {:.3g}'.format(
              format_name, batch.tolerance),
          'difference {:.1e} with {} example(s) in {}'.format(difference, count, library),
          OTHER_FORMATS)
  _LOG.info('the outputs of the %s model equal those of the checkpoint for %d examples',
            format_name, sum(counts))


def compute_largest_difference(expected_outputs: Arrays, actual_outputs: Arrays) -> float:
  """Returns the largest absolute difference between two sets of outputs.

  If an output has values beyond [-1, 1], its differences are divided by its largest absolute value.
  The result is infinite if a value is not finite, an output is missing, or shapes differ.
  """
  largest = 0.
  for name, output in expected_outputs.items():
    expected, actual = np.asarray(output, np.float64), np.asarray(actual_outputs.get(name))
    if expected.shape != actual.shape:
      return float('inf')
    difference = np.abs(expected - actual).max(initial=0) / np.abs(expected).max(initial=1)
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
      yield _compute_batch(restored, _to_inputs(restored, data))
    if index is not None:
      with contextlib.suppress(UserError):  # For example, the model may reject negative numbers.
        yield make_batch(restored, _BATCH_SIZE, index + 1)


def make_batch(restored: RestoredModel, batch_size: int, seed: int = 0) -> ComparisonBatch:
  """Makes random examples that the model accepts.

  Args:
    seed: determines the examples. If it is even, floats are uniform between 0 and 1. If it is odd,
      floats are normally distributed or, if the model fails with these, integers.

  Raises:
    UserError: the model fails with all kinds of random inputs.
  """
  if tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS):  # Vocabularies of feature columns.
    restored.session.run(tf.tables_initializer())
  has_only_floats = all(tensor.dtype.is_floating for tensor in restored.inputs.values())
  for distribution in (_NORMAL, _INTEGERS) if seed % 2 else (_UNIFORM,):
    needs_no_integers = has_only_floats and distribution != _INTEGERS
    for limit in _INTEGER_LIMITS[-1:] if needs_no_integers else _INTEGER_LIMITS:
      try:
        batch = _compute_batch(
            restored, _make_random_inputs(restored, batch_size, seed, distribution, limit))
      except tf.errors.InvalidArgumentError as error:
        failure = error
      else:
        return batch if limit != _INTEGER_LIMITS[0] else _compute_batch(
            restored, _make_random_inputs(restored, batch_size, seed, distribution, _NUMBER_LIMIT))
  raise UserError('the model must accept random inputs, with which its exports are verified',
                  first_line(failure),
                  'check the inputs in the model, or give another --export_format')


def _compute_batch(restored: RestoredModel, arrays: Arrays) -> ComparisonBatch:
  """Adds the outputs of the checkpoint to the inputs."""
  logits = [tensor.op.inputs[0] for tensor in restored.outputs.values()
            if tensor.op.type == 'Softmax']
  # No operations are added here, because the session would prepare the graph again for each batch.
  outputs, logit_arrays = restored.session.run(
      (restored.outputs, logits),
      {restored.inputs[name]: array for name, array in arrays.items()})
  factor = max([1.] + [np.abs(array).max(initial=0) / 10 for array in logit_arrays])
  return ComparisonBatch(arrays, outputs, TOLERANCE * factor)


def _to_inputs(restored: RestoredModel, features: Any) -> Arrays:
  """Converts a batch of features of the data, which are arrays, to inputs by name."""
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


def _make_random_inputs(restored: RestoredModel, batch_size: int, seed: int, distribution: str,
                        integer_limit: int) -> Arrays:
  """Makes random inputs by name. Pixel values are scaled as the model expects.

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
  return {name: _make_random_array(random, distribution, tensor.dtype, [batch_size] + [
      size or _UNKNOWN_DIMENSION_SIZE for size in tensor.shape.as_list()[1:]], integer_limit)
          for name, tensor in restored.inputs.items()}


def _make_random_array(random: np.random.RandomState, distribution: str, dtype: tf.DType,
                       shape: List[int], integer_limit: int) -> Any:
  """Makes random floats, integers below the limit, or short strings."""
  if dtype.is_floating and distribution != _INTEGERS:
    numbers = random.normal(size=shape) if distribution == _NORMAL else random.uniform(size=shape)
    return numbers.astype(dtype.as_numpy_dtype)
  limit = 2 if dtype.is_bool else integer_limit
  if dtype.is_integer:
    limit = min(limit, np.iinfo(dtype.as_numpy_dtype).max)
  integers = random.randint(0, limit, shape)
  return (integers.astype(bytes).astype(object) if dtype == tf.string
          else integers.astype(dtype.as_numpy_dtype))
