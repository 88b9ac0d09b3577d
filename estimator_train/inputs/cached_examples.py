"""Keeps the examples that functions of the user parse in memory."""

from typing import Any, List, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.process import memory


class CachedExamples(NamedTuple):
  """All examples of a split.

  Attributes:
    arrays: the components of the examples, [N, ...] each, in the order of tf.nest.flatten.
    element: an element of the dataset that the examples come from, which has their structure.
  """
  arrays: List[np.ndarray]
  element: Any


def read_all(batches: tf.data.Dataset) -> CachedExamples:
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
        return CachedExamples([np.concatenate(of_component) for of_component in parts], element)
      num_bytes += sum(array.nbytes for array in batch)
      if 2 * num_bytes > free_bytes:  # Concatenating copies the arrays.
        raise UserError('the cache does not fit into memory',
                        '--cache=memory with {:.2f} GB free'.format(free_bytes / 1e9),
                        'give --cache=none, or omit --cache')
      for of_component, array in zip(parts, batch):
        of_component.append(array)


def gather_batches(chunks: tf.data.Dataset, examples: CachedExamples) -> tf.data.Dataset:
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
