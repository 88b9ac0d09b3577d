"""Verifies exported models: compares their outputs with those of the checkpoint.

The examples are random. An export whose outputs differ from those of the checkpoint is not written.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError, first_line
from estimator_train.exporting.trained_model import IMAGES_INPUT, RestoredModel

Arrays = Dict[str, np.ndarray]
ModelFunction = Callable[[Arrays], Arrays]  # From inputs to outputs, both by name.
# The remedy for a model that cannot be converted, or whose exported model is wrong.
OTHER_FORMATS = 'give --export_format=saved_model or h5'
# Exports may differ from the checkpoint by this much in an output, see largest_difference.
TOLERANCE = 1e-5
_BATCH_SIZES = (1, 3)
_SEED = 2015
# The size of a dimension that the model does not determine, such as the length of a sequence.
_OPEN_SIZE = 6
# Integers are less than the first of these limits with which the model does not fail. The size of
# the smallest embedding comes first, because it limits the indices.
_INTEGER_LIMITS = (100, 2, 1)


class Examples(NamedTuple):
  """Random examples.

  Attributes:
    inputs: the inputs of a model by the names that they have in exports.
    outputs: the outputs of the checkpoint by the names that they have in exports.
    tolerance: exports may differ by this much. Probabilities may differ by more than TOLERANCE if a
      tenth of the largest logit exceeds 1, by that factor, because the rounding errors of logits
      are proportional to them.
  """
  inputs: Arrays
  outputs: Arrays
  tolerance: float


def verify(batches: Sequence[Examples], load: Callable[[], ModelFunction], format_name: str,
           library: str) -> None:
  """Compares the outputs of an exported model with those of the checkpoint.

  Args:
    batches: examples that were made before the export, see make_examples.
    load: loads the exported model.
    format_name: the format, for error messages.
    library: the library with which `load` runs the model, for error messages.

  Raises:
    UserError: the library cannot run the model, or its outputs differ too much.
  """
  try:
    run = load()
    outputs = [run(batch.inputs) for batch in batches]
  except Exception as error:  # The exception classes of the libraries are not public.
    raise UserError('{} cannot run the exported model'.format(library),
                    str(error).strip().partition('\n')[0], OTHER_FORMATS) from error
  for batch, found in zip(batches, outputs):
    difference = largest_difference(batch.outputs, found)
    if not difference <= batch.tolerance:
      count = len(next(iter(batch.inputs.values())))
      raise UserError(
          'the outputs of the {} model must equal those of the checkpoint to {:.3g}'.format(
              format_name, batch.tolerance),
          'difference {:.1e} with {} example(s) in {}'.format(difference, count, library),
          OTHER_FORMATS)


def largest_difference(expected: Arrays, found: Arrays) -> float:
  """Returns the largest absolute difference of the outputs.

  If an output has values beyond [-1, 1], its differences are divided by its largest absolute value.

  Args:
    expected: the outputs of the checkpoint, by name.
    found: outputs with the same names.

  Returns:
    The difference; infinity if a value is not a number, a name is missing or a shape is different.
  """
  return max(_difference(np.asarray(array, np.float64), np.asarray(found.get(name)))
             for name, array in expected.items())


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
  """Returns the largest difference of two arrays."""
  if expected.shape != found.shape:
    return float('inf')
  difference = np.abs(expected - found).max(initial=0) / np.abs(expected).max(initial=1)
  return float(difference) if np.isfinite(difference) else float('inf')


def make_examples(restored: RestoredModel,
                  batch_sizes: Sequence[int] = _BATCH_SIZES) -> List[Examples]:
  """Makes random examples of these numbers. The same number gives the same inputs.

  Raises:
    UserError: the model fails with each choice of the random inputs.
  """
  restored.session.run(tf.tables_initializer())  # Vocabularies of feature columns.
  return [_make_batch(restored, size) for size in batch_sizes]


def _make_batch(restored: RestoredModel, batch_size: int) -> Examples:
  """Makes random examples with the first limit of integers that the model accepts."""
  sizes = [layer.input_dim for layer in restored.keras_model.layers
           if isinstance(layer, tf.keras.layers.Embedding)]
  logits = [tensor.op.inputs[0] for tensor in restored.outputs.values()
            if tensor.op.type == 'Softmax']
  for limit in ([min(sizes)] if sizes else []) + list(_INTEGER_LIMITS):
    inputs = _random_inputs(restored, batch_size, limit)
    try:
      outputs, largest = restored.session.run(
          (restored.outputs, [tf.reduce_max(tf.abs(tensor)) for tensor in logits]),
          {restored.inputs[name]: array for name, array in inputs.items()})
      return Examples(inputs, outputs, TOLERANCE * max([1.] + [size / 10 for size in largest]))
    except tf.errors.InvalidArgumentError as error:
      failure = error
  raise UserError('the model must accept random inputs, with which its exports are verified',
                  first_line(failure),
                  'check the inputs in the model, or give another --export_format')


def _random_inputs(restored: RestoredModel, batch_size: int, integer_limit: int) -> Arrays:
  """Returns random inputs by name; random pixel values are scaled for the model."""
  random = np.random.RandomState(_SEED + batch_size)
  if restored.image_shape is not None:
    shape = (batch_size,) + restored.image_shape
    pixels = tf.constant(random.randint(0, 256, shape).astype(np.uint8))
    return {IMAGES_INPUT: restored.session.run(restored.preprocess(pixels))}
  return {name: _random_array(random, tensor.dtype, [batch_size] + [
      size or _OPEN_SIZE for size in tensor.shape.as_list()[1:]], integer_limit)
          for name, tensor in restored.inputs.items()}


def _random_array(random: np.random.RandomState, dtype: tf.DType, shape: List[int],
                  integer_limit: int) -> Any:
  """Returns random numbers from 0 to 1, integers below the limit, or short strings."""
  if dtype == tf.string:
    return random.randint(0, integer_limit, shape).astype(bytes).astype(object)
  if dtype.is_floating:
    return random.uniform(size=shape).astype(dtype.as_numpy_dtype)
  return random.randint(0, 2 if dtype.is_bool else integer_limit,
                        shape).astype(dtype.as_numpy_dtype)
