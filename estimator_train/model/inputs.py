"""Brings batches into the form that a model takes: pixel values, features, labels and weights."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.tf_patches import compiled_models, keras as keras_patches

# The ImageNet statistics with which the networks of tf.keras.applications were trained. `caffe`
# uses the means of blue, green and red, for pixel values in [0, 255]. `torch` uses the means and
# standard deviations of red, green and blue, for pixel values in [0, 1].
_CAFFE_MEANS = (103.939, 116.779, 123.68)
_TORCH_MEANS, _TORCH_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_preprocess_function(name: str, height: int, width: int,
                             channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the function that scales a batch of images on the device of the model.

  Args:
    name: a value of `--preprocess`.
    height, width: in pixels.
    channels: the number of channels of the model's input. The channel of a grey image is repeated
      as often.

  Returns:
    A function that takes pixel values from 0 to 255, uint8 or float32 [B, height, width, C] where C
    is `channels` or 1, and returns float32 [B, height, width, channels].
  """
  scale = SCALE_FUNCTIONS[name]

  def preprocess(pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.cast(pixels, tf.float32)
    shape = tf.concat([tf.shape(pixels)[:3], [channels]], 0)
    scaled = tf.broadcast_to(scale(pixels), shape)
    scaled.set_shape((None, height, width, channels))
    return scaled

  return preprocess


# The functions that scale pixel values, float32 [B, height, width, C], by values of `--preprocess`.
SCALE_FUNCTIONS: Dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    'unit': lambda pixels: pixels / 255.,
    'tf': lambda pixels: pixels / 127.5 - 1.,
    # TensorFlow Lite does not support an ellipsis.
    'caffe': lambda pixels: pixels[:, :, :, ::-1] - tf.constant(_CAFFE_MEANS),
    'torch': lambda pixels: (pixels / 255. - tf.constant(_TORCH_MEANS))
             / tf.constant(_TORCH_DEVIATIONS),
}
# The same functions as pairs (mean, scale): they compute (pixels - mean) * scale. Mean and scale
# are numbers or have one value per channel. `caffe` first reverses the order of the channels.
MEANS_AND_SCALES: Dict[str, Tuple[Any, Any]] = {
    'unit': (0., 1 / 255), 'tf': (127.5, 1 / 127.5), 'caffe': (_CAFFE_MEANS, 1.),
    'torch': ([255 * mean for mean in _TORCH_MEANS],
              [1 / (255 * deviation) for deviation in _TORCH_DEVIATIONS]),
}


def split_sample_weights(features: Any) -> Tuple[Any, Any]:
  """Returns the features alone, and the sample weights or None.

  Args:
    features: any features, or `{'features': ..., 'sample_weights': ...}`.
  """
  if isinstance(features, dict) and set(features) == {'features', 'sample_weights'}:
    return features['features'], features['sample_weights']
  return features, None


def part_of_batch(batch: Any, index: tf.Tensor, num_parts: int) -> Any:
  """Returns one of `num_parts` equal parts of a batch, a structure of tensors [B, ...]."""
  def part_of(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
      size = tensor.dense_shape[0] // num_parts
      start = tf.one_hot(0, tf.size(tensor.dense_shape), tf.cast(index, tf.int64) * size)
      return tf.sparse.slice(tensor, start, tf.concat([[size], tensor.dense_shape[1:]], 0))
    size = tf.shape(tensor)[0] // num_parts
    # TensorFlow cannot slice uint8 on a GPU. Soft placement would copy each batch to the CPU.
    can_slice = tensor.dtype != tf.uint8
    part = (tensor if can_slice else tf.bitcast(tensor, tf.int8))[index * size:(index + 1) * size]
    part = part if can_slice else tf.bitcast(part, tensor.dtype)
    static_size = tf.get_static_value(size)
    part.set_shape(tf.TensorShape([static_size]).concatenate(tensor.shape[1:]))
    return part

  return tf.nest.map_structure(lambda tensor: None if tensor is None else part_of(tensor), batch)


class Batch(NamedTuple):
  """A batch in the form that the graph of a model takes.

  Attributes:
    features: for each input that is fed, a tensor, tf.SparseTensor or tf.RaggedTensor.
    labels: for each output a tensor; None for an output without a loss.
    sample_weights: for each output a tensor; None: all weights are 1.
  """
  features: Sequence[Any]
  labels: Sequence[Optional[tf.Tensor]] = ()
  sample_weights: Sequence[Optional[tf.Tensor]] = ()

  def without_shapes(self) -> 'Batch':
    """Returns the batch with features whose static shapes are unknown."""
    return self._replace(features=[
        tf.placeholder_with_default(tensor, None) if isinstance(tensor, tf.Tensor) else tensor
        for tensor in self.features])

  def size(self) -> tf.Tensor:
    """Returns the number of examples, int64."""
    tensor = (*self.features, *(label for label in self.labels if label is not None))[0]
    if isinstance(tensor, tf.RaggedTensor):
      return tf.cast(tensor.nrows(), tf.int64)
    if isinstance(tensor, tf.SparseTensor):
      return tensor.dense_shape[0]
    return tf.shape(tensor, out_type=tf.int64)[0]


class BatchAdapter(NamedTuple):
  """Arranges the features, labels and weights of a batch in the order in which a model takes them.

  Tensors are cast to the types of the model, as `fit` does. The shapes of features are not checked,
  because many layers accept other shapes than those of the declared inputs.

  Attributes:
    source_name: the name of what yields the batches, such as `--dataset=NAME`, for error messages.
  """
  model: tf.keras.Model
  source_name: str

  def to_structure(self, features: Any) -> Any:
    """Returns features for a model whose inputs are unknown, in their given structure."""
    return tf.nest.map_structure(_numbers_as_column, features)

  def arrange_features(self, features: Any) -> List[Any]:
    """Returns the features in the order of the inputs.

    As in Keras, features [B] become a column [B, 1], unless the model takes features [B].

    Raises:
      InvalidValue: the names, the number or the types of the features do not fit.
    """
    names = compiled_models.fed_input_names(self.model)
    tensors = self._by_name(features, names, 'features', 'input')
    return [self._cast('features', name, _as_column(tensors[name], expected), expected)
            for name, expected in zip(names, compiled_models.fed_inputs(self.model))]

  def arrange_labels(self, labels: Any, targets: Sequence[Optional[tf.Tensor]]) -> List[Any]:
    """Returns the labels of each output; None for an output without a loss.

    As in Keras, labels with one dimension less than the model takes, such as class indices [B] or
    [B, T], get a last dimension of 1.

    Args:
      labels: a tensor, a list or tuple in the order of the outputs, or a dict by their names.
      targets: the tensors that the labels replace; None for an output without a loss.

    Raises:
      InvalidValue: the names, the number or the shapes of the labels do not fit. The shapes are
        checked only for losses of Keras, because a loss of the user may take any labels.
    """
    names = self.model.output_names
    with_loss = [name for name, target in zip(names, targets) if target is not None]
    if not with_loss:
      return [None] * len(names)
    if labels is None:
      raise InvalidValue('training and evaluation require labels',
                         self.source_name + ': only features', 'yield (features, labels)')
    if isinstance(labels, dict):
      labels = {name: value for name, value in labels.items()
                if name in with_loss or name not in names}
    has_all_labels = isinstance(labels, (list, tuple)) and len(labels) == len(names)
    tensors = self._by_name(labels, names if has_all_labels else with_loss, 'labels', 'output')
    arranged: List[Optional[tf.Tensor]] = []
    for name, target, output, loss in zip(names, targets, self.model.outputs,
                                          keras_patches.loss_functions(self.model, names)):
      label = None if target is None else _with_last_dimension(tensors[name], target)
      if label is not None and keras_patches.needs_labels_in_output_shape(loss):
        if keras_patches.takes_one_hot(loss) and output.shape.ndims and (
            output.shape.as_list()[-1] == 1):
          raise InvalidValue('a categorical cross-entropy requires one output per class',
                             '{} has the shape {}'.format(name, output.shape),
                             'give a binary cross-entropy, or more outputs')
        if not has_shape_like(label, output):
          raise self._misfit('labels', name, label, output)
      arranged.append(None if label is None else self._cast('labels', name, label, target))
    return arranged

  def arrange_sample_weights(self, weights: Any) -> List[Any]:
    """Returns the sample weights of each output; one tensor is used for all outputs.

    Raises:
      InvalidValue: the weights have the wrong names, number or rank.
    """
    names = self.model.output_names
    if weights is None:
      return [None] * len(names)
    if not isinstance(weights, (dict, list, tuple)):
      weights = [weights] * len(names)
    if isinstance(weights, dict):
      weights = {**dict.fromkeys(names), **weights}
    tensors = self._by_name(weights, names, 'sample weights', 'output')
    is_temporal = bool(self.model.sample_weight_mode)
    for name, given in tensors.items():
      if given is not None:
        tensor = tensors[name] = tf.cast(given, tf.keras.backend.floatx())
        if not is_temporal and tensor.shape.ndims != 1:
          if tensor.shape.ndims is not None and tensor.shape.as_list()[1:] != [1]:
            raise InvalidValue('there must be one sample weight for each example',
                               '{}: {} for {}'.format(self.source_name, tensor.shape, name),
                               "give weights [B], or compile the model with "
                               "sample_weight_mode='temporal' for [B, T]")
          tensors[name] = tf.reshape(tensor, [-1])
    return [tensors[name] for name in names]

  def describe_misfit(self, features: Any) -> Optional[InvalidValue]:
    """Returns an error about features whose shapes do not fit the inputs; None: all fit."""
    names = compiled_models.fed_input_names(self.model)
    tensors = self._by_name(features, names, 'features', 'input')
    for name, expected in zip(names, compiled_models.fed_inputs(self.model)):
      tensor = _as_column(tensors[name], expected)
      if not has_shape_like(tensor, expected):
        return self._misfit('features', name, tensor, expected)
    return None

  def _by_name(self, values: Any, names: Sequence[str], kind: str, part: str) -> Dict[str, Any]:
    """Returns the tensors by the names of inputs or outputs.

    Raises:
      InvalidValue: the names or the number of the values differ from `names`.
    """
    if isinstance(values, dict):
      if set(values) != set(names):
        raise InvalidValue('the {} must have the names of the {}s of the model'.format(kind, part),
                           '{}: {}, expected {}'.format(self.source_name, ', '.join(sorted(values)),
                                                        ', '.join(sorted(names))),
                           'rename them, or name the layers')
    else:
      items = tf.nest.flatten(values) if isinstance(values, (list, tuple)) else [values]
      if len(items) != len(names):
        raise InvalidValue('there must be {} for each {} of the model'.format(kind, part),
                           '{}: {} for {}'.format(self.source_name, len(items), ', '.join(names)),
                           'give a tuple in this order, or a dict by these names')
      values = dict(zip(names, items))
    return {name: None if value is None else _to_tensor(value) for name, value in values.items()}

  def _cast(self, kind: str, name: str, tensor: Any, expected: Any) -> Any:
    """Returns a tensor in the type that the model takes.

    A number that an integer type cannot hold ends the run. `fit` would silently change the number.
    """
    old, new = tensor.dtype, expected.dtype
    if old == new:
      return tensor
    if tf.string in (old, new):
      raise self._misfit(kind, name, tensor, expected)
    values = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else (
        tensor.values if isinstance(tensor, tf.SparseTensor) else tensor)
    if new.is_integer and (not old.is_integer or old.min < new.min or old.max > new.max) and (
        old != tf.bool):
      with tf.control_dependencies([tf.Assert(
          # As in `fit`, fractions are cut off.
          tf.reduce_all(tf.abs(tf.cast(tf.cast(values, new), tf.float64)
                               - tf.cast(values, tf.float64)) < 1),
          ['the {} must be within the range of {}: {}: {}'.format(kind, new.name, self.source_name,
                                                                  name), values])]):
        values = tf.identity(values)
    values = tf.cast(values, new)
    if isinstance(tensor, tf.RaggedTensor):
      return tensor.with_flat_values(values)
    if isinstance(tensor, tf.SparseTensor):
      return tf.SparseTensor(tensor.indices, values, tensor.dense_shape)
    return values

  def _misfit(self, kind: str, name: str, tensor: Any, expected: Any) -> InvalidValue:
    return InvalidValue('the {} do not fit the model'.format(kind),
                        '{}: {} is {} {}, expected {} {}'.format(
                            self.source_name, name, tensor.dtype.name, tensor.shape,
                            expected.dtype.name, expected.shape),
                        'change their shape or dtype, or the model; a split of a data set yields '
                        'single examples, an input_fn batches')


def has_shape_like(tensor: Any, expected: Any) -> bool:
  """Returns whether a tensor can have the shape of an input or output, whatever its batch size."""
  return None in (tensor.shape.ndims, expected.shape.ndims) or bool(
      tensor.shape[1:].is_compatible_with(expected.shape[1:])
      and tensor.shape.ndims == expected.shape.ndims)


def _to_tensor(value: Any) -> Any:
  return value if isinstance(value, tf.RaggedTensor) else (
      tf.convert_to_tensor_or_sparse_tensor(value))


def _numbers_as_column(tensor: Any) -> Any:
  """Returns numbers [B] as a column [B, 1]; returns other tensors unchanged."""
  tensor = _to_tensor(tensor)
  is_flat = isinstance(tensor, tf.Tensor) and tensor.shape.ndims == 1
  return tensor[:, tf.newaxis] if is_flat and tensor.dtype != tf.string else tensor


def _with_last_dimension(label: Any, target: tf.Tensor) -> Any:
  """Adds a last dimension of 1 to labels that have one dimension less than the target."""
  has_rank = isinstance(label, tf.Tensor) and None not in (label.shape.ndims, target.shape.ndims)
  if has_rank and label.shape.ndims > 1 and label.shape.ndims == target.shape.ndims - 1:
    return label[..., tf.newaxis]
  return _as_column(label, target)


def _as_column(tensor: Any, expected: tf.Tensor) -> Any:
  """Returns a tensor [B], or of unknown rank, as [B, 1] if the model takes a matrix there."""
  if isinstance(tensor, tf.Tensor) and expected.shape.ndims is not None and (
      expected.shape.ndims > 1):
    if tensor.shape.ndims == 1:
      return tensor[:, tf.newaxis]
    if tensor.shape.ndims is None and expected.shape.as_list()[1:] == [1]:
      return tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], 1]))
  return tensor
