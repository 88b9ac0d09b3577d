"""Feeds a batch of rows to the inputs of a model.

The tensors that a sparse or ragged input consists of are fed directly, so that no value is lost.
"""

import itertools
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf


class RowInput(NamedTuple):
  """An input of a model.

  Attributes:
    tensor: a tensor, tf.SparseTensor or tf.RaggedTensor of placeholders.
    shape: the shape for one example.
  """
  tensor: Any
  shape: tf.TensorShape

  @property
  def is_nested(self) -> bool:
    """Whether the values of an example are nested lists, which may differ in length."""
    return isinstance(self.tensor, tf.RaggedTensor) or (
        isinstance(self.tensor, tf.SparseTensor) and self.shape.num_elements() is None)

  @property
  def num_arrays(self) -> int:
    """The number of arrays of a row for this input: one for the values, and one per list level."""
    return 1 + self.shape.rank if self.is_nested else 1

  def placeholders(self) -> Sequence[tf.Tensor]:
    """Returns the tensors to feed."""
    if isinstance(self.tensor, tf.RaggedTensor):
      return [*self.tensor.nested_row_splits, self.tensor.flat_values]
    if isinstance(self.tensor, tf.SparseTensor):
      return [self.tensor.indices, self.tensor.values, self.tensor.dense_shape]
    return [self.tensor]

  def convert_to_feed_values(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Returns the values of the placeholders.

    Args:
      arrays: a batch of each array of the rows. The last batch has the values, [B, ...] or, for
        nested lists, [B, N]. The other batches have the lengths of the lists of each level,
        [B, ...].
    """
    *lengths_by_level, values = arrays
    if isinstance(self.tensor, tf.RaggedTensor):
      rank = self.tensor.ragged_rank
      inner_shape = self.shape[rank:].as_list()
      return [*(np.cumsum([0, *lengths.flat], dtype=np.int64)
                for lengths in lengths_by_level[:rank]),
              values.reshape([values.size // max(1, int(np.prod(inner_shape, dtype=int))),
                              *inner_shape])]
    if not isinstance(self.tensor, tf.SparseTensor):
      return arrays
    if not self.is_nested:  # The result is the same as that of tf.sparse.from_dense.
      is_present = np.array(values != (b'' if self.tensor.dtype == tf.string else 0))
      return [np.argwhere(is_present), values[is_present], np.array(values.shape, np.int64)]
    indices: List[Any] = [(position,) for position in range(len(values))]
    for lengths in lengths_by_level:
      indices = [(*index, position) for index, length in zip(indices, lengths.flat)
                 for position in range(length)]
    max_lengths = [max(lengths.flat, default=0) if size is None else size
                   for lengths, size in zip(lengths_by_level, self.shape.as_list())]
    return [np.reshape(np.array(indices, np.int64), (-1, 1 + len(lengths_by_level))),
            values.reshape(-1), np.array([len(values), *max_lengths], np.int64)]


def make_row_inputs(model: tf.keras.Model, tensors: Dict[str, Any]) -> Dict[str, RowInput]:
  """Returns the inputs of a model, by the names of its input tensors."""
  return {name: RowInput(tensor, tf.TensorShape(
      tensor.shape if isinstance(tensor, tf.Tensor) else
      model.get_layer(name).get_config()['batch_input_shape'])[1:])
          for name, tensor in tensors.items()}


def make_feed_values(inputs: Sequence[RowInput], arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
  """Returns the values of the placeholders of all inputs.

  Args:
    arrays: a batch of each array of the rows, in the order of the inputs.
  """
  arrays_iterator = iter(arrays)
  return [value for row_input in inputs for value in row_input.convert_to_feed_values(
      list(itertools.islice(arrays_iterator, row_input.num_arrays)))]
