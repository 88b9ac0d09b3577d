"""Makes random inputs of a restored model, to compare the model with its exports."""

from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.models import probabilities

IMAGES_INPUT, PROBABILITIES_OUTPUT = 'images', 'probabilities'
Arrays = Dict[str, np.ndarray]
_SEED = 2015
# The size of a dimension that the model does not determine, such as the length of a sequence.
_OPEN_SIZE = 6
# Integers are less than the first of these limits with which the model does not fail. The size of
# the smallest embedding comes first, because it limits the indices.
_INTEGER_LIMITS = (100, 2, 1)


def named_inputs(model: tf.keras.Model, dataset: DataSet) -> Dict[str, tf.Tensor]:
  """Returns the inputs of a model by the names that they have in exports.

  The input of a model for images is called `images`, and contains scaled pixel values. Other inputs
  have the names of the Keras model.
  """
  if dataset.image_shape is not None:
    return {IMAGES_INPUT: model.inputs[0]}
  return dict(zip(model.input_names, model.inputs))


def named_outputs(model: tf.keras.Model, dataset: DataSet) -> Dict[str, tf.Tensor]:
  """Returns the class probabilities as `probabilities`; without classes, all outputs by name."""
  if dataset.labels:
    return {PROBABILITIES_OUTPUT: probabilities.from_outputs(model, model.outputs[0])}
  return dict(zip(model.output_names, model.outputs))


class RandomExamples:
  """Makes random inputs of a restored model.

  Args:
    model: the model, in the default graph.
    session: the session that holds the weights of the model.
    dataset: the data set, for the shape of images and whether there are classes.
    preprocess: the function that scales pixel values for the model; unused without images.
  """

  def __init__(self, model: tf.keras.Model, session: tf.Session, dataset: DataSet,
               preprocess: Callable[[tf.Tensor], tf.Tensor]) -> None:
    self._session = session
    session.run(tf.tables_initializer())  # Vocabularies of feature columns.
    self._inputs, self._outputs = named_inputs(model, dataset), named_outputs(model, dataset)
    self._pixels: Optional[tf.Tensor] = None
    if dataset.image_shape is not None:
      self._image_shape = dataset.image_shape[:2] + (model.inputs[0].shape.as_list()[-1],)
      self._pixels = tf.placeholder(tf.uint8, (None,) + self._image_shape)
      self._scaled = preprocess(self._pixels)
    sizes = [layer.input_dim for layer in model.layers
             if isinstance(layer, tf.keras.layers.Embedding)]
    self._integer_limits = ((min(sizes),) if sizes else ()) + _INTEGER_LIMITS

  def make_pixels(self, count: int) -> np.ndarray:
    """Returns random images, uint8 [count, height, width, channels]; the model takes images."""
    return np.random.RandomState(_SEED + count).randint(
        0, 256, (count,) + self._image_shape).astype(np.uint8)

  def make(self, count: int) -> Tuple[Arrays, Arrays]:
    """Returns inputs, and the outputs of the model for these inputs, by name.

    The number of examples is `count`. The same count gives the same inputs.

    Raises:
      UserError: the model fails with each choice of the random inputs.
    """
    for limit in self._integer_limits:
      inputs = self._make_inputs(count, limit)
      try:
        outputs = self._session.run(
            self._outputs, {self._inputs[name]: array for name, array in inputs.items()})
        return inputs, outputs
      except tf.errors.InvalidArgumentError as error:
        failure = error
    raise UserError('the model must accept random inputs, with which its exports are verified',
                    failure.message.partition('\n')[0],
                    'check the inputs in the model, or give another --export_format')

  def _make_inputs(self, count: int, integer_limit: int) -> Arrays:
    """Returns random inputs by name."""
    if self._pixels is not None:
      return {IMAGES_INPUT: self._session.run(
          self._scaled, {self._pixels: self.make_pixels(count)})}
    random = np.random.RandomState(_SEED + count)
    return {name: _random_array(random, tensor.dtype, [count] + [
        size or _OPEN_SIZE for size in tensor.shape.as_list()[1:]], integer_limit)
            for name, tensor in self._inputs.items()}


def _random_array(random: np.random.RandomState, dtype: tf.DType, shape: List[int],
                  integer_limit: int) -> Any:
  """Returns random numbers from 0 to 1, integers below the limit, or short strings."""
  if dtype == tf.string:
    return np.array(['{}'.format(number).encode() for number in random.randint(
        0, integer_limit, shape).ravel()], object).reshape(shape)
  if dtype.is_floating:
    return random.uniform(size=shape).astype(dtype.as_numpy_dtype)
  return random.randint(0, 2 if dtype.is_bool else integer_limit,
                        shape).astype(dtype.as_numpy_dtype)
