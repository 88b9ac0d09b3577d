"""Makes `input_fn`s of examples that functions of the user make."""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import NO_IMAGE, Batching
from estimator_train.data.file_errors import translate_errors
from estimator_train.data.source import InputFn, Source
from estimator_train.errors import UserError
from estimator_train.settings import user_code
from estimator_train.system import memory

_LABEL_BATCH_SIZE = 64


def read_class_indices(source: Source, read_in_order: Callable[[Batching], tf.data.Dataset],
                       function: Any) -> np.ndarray:
  """Returns the class indices of all examples, int64 [N].

  Args:
    source, read_in_order, function: as in make_cached_input_fn.

  Raises:
    UserError: the labels are not integers.
  """
  batching = Batching(source.dataset.image_shape or NO_IMAGE, len(source.dataset.labels),
                      one_hot=False, examples_per_batch=_LABEL_BATCH_SIZE)
  with tf.Graph().as_default(), translate_errors(source):
    examples = read_in_order(batching)
    _check_structure(examples, function, batching.num_classes > 0)
    labels = _read_all(examples.map(lambda *parts: parts[1]))
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
    examples = _read_all(read_in_order(batching))

  def input_fn() -> tf.data.Dataset:
    chunks = source.training_chunks(num_examples, batching, batching.examples_per_batch)
    return encode_batches(_gather_batches(chunks, examples), function, batching)

  return input_fn


def encode_batches(batches: tf.data.Dataset, function: Any,
                   batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (features, labels), prefetched.

  If there are weights, the features are `{'features': ..., 'sample_weights': ...}`.

  Args:
    batches: (features, labels) or (features, labels, weights).
    function: the function of the user that makes the examples.
    batching: how labels are encoded.

  Raises:
    UserError: the function does not return (features, label) or (features, label, weight), or the
      dtype of the labels or weights is wrong.
  """
  _check_structure(batches, function, batching.num_classes > 0)

  @tf.autograph.experimental.do_not_convert
  def encode(features: Any, labels: Any, weights: Any = None) -> Tuple[Any, Any]:
    if batching.num_classes:
      labels = batching.check_and_encode_labels(tf.cast(labels, tf.int64))
    if weights is not None:
      features = {'features': features, 'sample_weights': weights}
    return features, labels

  return batching.prefetch_batches(batches.map(encode))


def _check_structure(batches: tf.data.Dataset, function: Any, has_classes: bool) -> None:
  """Raises a UserError if the examples of a function have a wrong structure or label dtype."""
  structure = tf.data.get_output_types(batches)
  if not isinstance(structure, tuple) or len(structure) not in (2, 3):
    raise UserError('an example must be (features, label) or (features, label, weight)',
                    '{} returns {}'.format(function_name(function), structure),
                    'return a tuple of two or three')
  for name, part in zip(('labels', 'weights'), structure[1:]):
    must_be_integers = has_classes and name == 'labels'
    for dtype in tf.nest.flatten(part):
      if dtype == tf.string or (must_be_integers and not (dtype.is_integer or dtype.is_bool)):
        raise UserError(
            '{} must be {}'.format(name, 'integers, indices into the class names'
                                   if must_be_integers else 'numbers'),
            '{} returns {}'.format(function_name(function), dtype.name),
            'convert them in this function, such as with tf.lookup.StaticHashTable'
            if dtype == tf.string else 'give tf.cast(label, tf.int64)')


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


class _CachedExamples(NamedTuple):
  """All examples of a split.

  Attributes:
    arrays: the components of the examples, [N, ...] each, in the order of tf.nest.flatten.
    element: an element of the dataset that the examples come from, which has their structure.
  """
  arrays: List[np.ndarray]
  element: Any


def _read_all(batches: tf.data.Dataset) -> _CachedExamples:
  """Reads a dataset of batches, in the default graph.

  Raises:
    UserError: the examples do not fit into memory.
    tf.errors.OpError: an example cannot be read.
  """
  element = tf.data.make_one_shot_iterator(batches).get_next()
  parts: List[List[np.ndarray]] = [[] for _ in tf.nest.flatten(element)]
  num_bytes, free_bytes = 0, memory.available_bytes()
  with tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    read_batch = session.make_callable(tf.nest.flatten(element))
    while True:
      try:
        batch = read_batch()
      except tf.errors.OutOfRangeError:
        return _CachedExamples([np.concatenate(of_component) for of_component in parts], element)
      num_bytes += sum(array.nbytes for array in batch)
      if 2 * num_bytes > free_bytes:  # Concatenating copies the arrays.
        raise UserError('the cache does not fit into memory',
                        '--cache=memory with {:.2f} GB free'.format(free_bytes / 1e9),
                        'give --cache=none, or omit --cache')
      for of_component, array in zip(parts, batch):
        of_component.append(array)


def _gather_batches(chunks: tf.data.Dataset, examples: _CachedExamples) -> tf.data.Dataset:
  """Returns a dataset of batches with the structure of `examples.element`.

  Args:
    chunks: the indices of the examples of each batch, int64 [B].
    examples: the examples.
  """
  def gather(indices: np.ndarray) -> List[np.ndarray]:
    return [array[indices] for array in examples.arrays]

  # Without this decorator, AutoGraph would take time, although it converts nothing.
  @tf.autograph.experimental.do_not_convert
  def make_batch(indices: tf.Tensor) -> Any:
    tensors = tf.numpy_function(gather, [indices], [
        tensor.dtype for tensor in tf.nest.flatten(examples.element)])
    for tensor, array in zip(tensors, examples.arrays):
      tensor.set_shape((None,) + array.shape[1:])
    return tf.nest.pack_sequence_as(examples.element, tensors)

  return chunks.map(make_batch)
