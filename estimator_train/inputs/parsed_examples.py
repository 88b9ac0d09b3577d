"""Makes `input_fn`s of examples that functions of the user make."""

from typing import Any, Callable, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.inputs import cached_examples
from estimator_train.inputs.batching import NO_IMAGE, Batching
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.inputs.source import InputFn, Source
from estimator_train.settings import user_code

_LABEL_BATCH_SIZE = 64


def read_class_indices(source: Source,
                       read_in_order: Callable[[Batching], tf.data.Dataset]) -> np.ndarray:
  """Returns the class indices of all examples, int64 [N]."""
  batching = Batching(source.dataset.image_shape or NO_IMAGE, len(source.dataset.labels),
                      one_hot=False, examples_per_batch=_LABEL_BATCH_SIZE)
  with tf.Graph().as_default(), translate_errors(source):
    labels = cached_examples.read_all(read_in_order(batching).map(lambda *parts: parts[1]))
  return labels.arrays[0].astype(np.int64).reshape(-1)


def make_cached_input_fn(source: Source, num_examples: int,
                         read_in_order: Callable[[Batching], tf.data.Dataset], function: Any,
                         batching: Batching) -> InputFn:
  """Reads all examples into memory, and makes the `input_fn` of training.

  Args:
    source: the source of the examples, which determines their order.
    num_examples: the number of examples.
    read_in_order: returns a dataset of batches of all examples.
    function: the function of the user that makes the examples.
    batching: how the examples are combined into batches.
  """
  with tf.Graph().as_default():
    examples = cached_examples.read_all(read_in_order(batching))

  def input_fn() -> tf.data.Dataset:
    chunks = source.training_chunks(num_examples, batching, batching.examples_per_batch)
    return encode_batches(cached_examples.gather_batches(chunks, examples), function, batching)

  return input_fn


def encode_batches(batches: tf.data.Dataset, function: Any,
                   batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (features, labels), prefetched.

  If there are weights, the features are `{'features': ..., 'sample_weights': ...}`.

  Args:
    batches: (features, labels) or (features, labels, weights).
    function: the function of the user that makes the examples.
    batching: how labels are encoded.
  """
  structure = tf.data.get_output_types(batches)
  if not isinstance(structure, tuple) or len(structure) not in (2, 3):
    raise UserError('an example must be (features, label) or (features, label, weight)',
                    '{} returns {}'.format(function_name(function), structure),
                    'return a tuple of two or three')

  @tf.autograph.experimental.do_not_convert
  def encode(features: Any, labels: Any, weights: Any = None) -> Tuple[Any, Any]:
    if batching.num_classes:
      labels = batching.encode_labels(_check_range(tf.cast(labels, tf.int64), batching))
    if weights is not None:
      features = {'features': features, 'sample_weights': weights}
    return features, labels

  return batching.prefetch_batches(batches.map(encode))


def _check_range(class_indices: tf.Tensor, batching: Batching) -> tf.Tensor:
  """Returns the class indices; one that is out of range would be encoded as no class at all."""
  is_valid = tf.reduce_all((class_indices >= 0) & (class_indices < batching.num_classes))
  assertion = tf.Assert(is_valid, ['a class index is out of range'])
  with tf.control_dependencies([assertion]):
    return tf.identity(class_indices)


def find_invalid_class(source: Source, label: Any) -> Optional[str]:
  """Describes the label of an example if it is no valid class index, or else returns None."""
  num_classes = len(source.dataset.labels)
  if not num_classes or (np.ndim(label) == 0 and 0 <= label < num_classes):
    return None
  return 'the label is {}, but classes are from 0 to {}'.format(label, num_classes - 1)


def function_name(function: Any) -> str:
  return '{}.{}'.format(getattr(function, '__module__', ''),
                        getattr(function, '__qualname__', repr(function)))


def naming(function: Any) -> Any:
  """Returns a context manager that translates the exceptions of a user's function."""
  return user_code.translate_errors('a function of a split failed', function_name(function))
