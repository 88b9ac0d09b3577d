"""Converts pixel values, features, labels and sample weights to the form that a model takes."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.tf_patches import compiled_models, keras as keras_patches

# The ImageNet statistics with which the networks of tf.keras.applications were trained: for `caffe`
# the means of blue, green and red pixel values in [0, 255], and for `torch` the means and standard
# deviations of red, green and blue pixel values in [0, 1].
_CAFFE_MEANS = (103.939, 116.779, 123.68)
_TORCH_MEANS, _TORCH_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_preprocess_function(name: str, height: int, width: int,
                             channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the function that scales a batch of images on the device of the model.

  Args:
    name: a value of `--preprocess`.
    height, width: in pixels.
    channels: the number of channels of the model's input.

  Returns:
    A function from pixel values to float32 [B, height, width, channels]. The pixel values are from
    0 to 255, uint8 or float32 [B, height, width, C]. If C is 1, the channel is repeated.
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
# The pairs (mean, scale) with which these functions compute (pixels - mean) * scale. Both are
# numbers or have one number per channel. `caffe` first reverses the order of the channels.
MEANS_AND_SCALES: Dict[str, Tuple[Any, Any]] = {
    'unit': (0., 1 / 255), 'tf': (127.5, 1 / 127.5), 'caffe': (_CAFFE_MEANS, 1.),
    'torch': ([255 * mean for mean in _TORCH_MEANS],
              [1 / (255 * deviation) for deviation in _TORCH_DEVIATIONS]),
}


def split_sample_weights(features: Any) -> Tuple[Any, Any]:
  """Returns the features, and their sample weights or None.

  Args:
    features: any features, or `{'features': ..., 'sample_weights': ...}`.
  """
  if isinstance(features, dict) and set(features) == {'features', 'sample_weights'}:
    return features['features'], features['sample_weights']
  return features, None


def select_micro_batch(batch: Any, index: tf.Tensor, num_micro_batches: int) -> Any:
  """Returns one of several equal parts of a batch, which is a structure of tensors [B, ...]."""
  def slice_tensor(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
      size = tensor.dense_shape[0] // num_micro_batches
      start = tf.one_hot(0, tf.size(tensor.dense_shape), tf.cast(index, tf.int64) * size)
      return tf.sparse.slice(tensor, start, tf.concat([[size], tensor.dense_shape[1:]], 0))
    size = tf.shape(tensor)[0] // num_micro_batches
    # TensorFlow cannot slice uint8 on a GPU. Soft placement would copy each batch to the CPU.
    can_slice = tensor.dtype != tf.uint8
    rows = (tensor if can_slice else tf.bitcast(tensor, tf.int8))[index * size:(index + 1) * size]
    rows = rows if can_slice else tf.bitcast(rows, tensor.dtype)
    static_size = tf.get_static_value(size)
    rows.set_shape(tf.TensorShape([static_size]).concatenate(tensor.shape[1:]))
    return rows

  return tf.nest.map_structure(
      lambda tensor: None if tensor is None else slice_tensor(tensor), batch)


class Batch(NamedTuple):
  """A batch in the form that the graph of a model takes.

  Attributes:
    features: a tensor, tf.SparseTensor or tf.RaggedTensor for each input that is fed.
    labels: a tensor for each output; None for an output without a loss.
    sample_weights: a tensor for each output; None if all weights are 1.
  """
  features: Sequence[Any]
  labels: Sequence[Optional[tf.Tensor]] = ()
  sample_weights: Sequence[Optional[tf.Tensor]] = ()

  def without_shapes(self) -> 'Batch':
    """Makes the static shapes of the features unknown."""
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
    source_name: the source of the batches, such as `--dataset=NAME`, for error messages.
  """
  model: tf.keras.Model
  source_name: str

  def arrange_for_unknown_inputs(self, features: Any) -> Any:
    """Converts features to tensors for a model whose inputs are unknown. Keeps their structure."""
    return tf.nest.map_structure(_numbers_as_column, features)

  def arrange_features(self, features: Any) -> List[Any]:
    """Returns the features in the order of the inputs.

    As in Keras, features [B] become a column [B, 1] unless the model takes features [B].

    Raises:
      InvalidValue: the names, the number or the types of the features do not fit.
    """
    names = compiled_models.fed_input_names(self.model)
    if not names:
      raise InvalidValue('a model must take features',
                         ', '.join(self.model.input_names) + ': made by tf.keras.Input(tensor=...)',
                         'give the shape of the input, and no tensor')
    tensors = self._tensors_by_name(features, names, 'features', 'input')
    return [self._cast('features', name, _as_column(tensors[name], expected), expected)
            for name, expected in zip(names, compiled_models.fed_inputs(self.model))]

  def arrange_labels(self, labels: Any, targets: Sequence[Optional[tf.Tensor]]) -> List[Any]:
    """Returns the labels of each output; None for an output without a loss.

    As in Keras, labels get a last dimension of 1 if they have one dimension less than the model
    takes, such as for class indices [B] or [B, T].

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
    tensors = self._tensors_by_name(
        labels, names if has_all_labels else with_loss, 'labels', 'output')
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
        if not can_have_shape_of(label, output):
          raise self._make_misfit_error('labels', name, label, output)
      arranged.append(None if label is None else self._cast('labels', name, label, target))
    return arranged

  def arrange_sample_weights(self, weights: Any) -> List[Any]:
    """Returns the sample weights of each output. A single tensor is used for all outputs.

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
    tensors = self._tensors_by_name(weights, names, 'sample weights', 'output')
    is_temporal = bool(self.model.sample_weight_mode)
    for name, value in tensors.items():
      if value is not None:
        tensor = tensors[name] = tf.cast(value, tf.keras.backend.floatx())
        if not is_temporal and tensor.shape.ndims != 1:
          if tensor.shape.ndims is not None and tensor.shape.as_list()[1:] != [1]:
            raise InvalidValue('there must be one sample weight for each example',
                               '{}: {} for {}'.format(self.source_name, tensor.shape, name),
                               "give weights [B], or compile the model with "
                               "sample_weight_mode='temporal' for [B, T]")
          tensors[name] = tf.reshape(tensor, [-1])
    return [tensors[name] for name in names]

  def find_misfit(self, features: Any) -> Optional[InvalidValue]:
    """Returns the error about features whose shapes do not fit the inputs; None if all fit."""
    names = compiled_models.fed_input_names(self.model)
    tensors = self._tensors_by_name(features, names, 'features', 'input')
    for name, expected in zip(names, compiled_models.fed_inputs(self.model)):
      tensor = _as_column(tensors[name], expected)
      if not can_have_shape_of(tensor, expected):
        return self._make_misfit_error('features', name, tensor, expected)
    return None

  def _tensors_by_name(self, values: Any, names: Sequence[str], values_kind: str,
                       names_kind: str) -> Dict[str, Any]:
    """Converts values to tensors by the names of inputs or outputs.

    Raises:
      InvalidValue: the names or the number of the values differ from `names`.
    """
    if isinstance(values, dict):
      if set(values) != set(names):
        raise InvalidValue('the {} must have the names of the {}s of the model'.format(
                               values_kind, names_kind),
                           '{}: {}, expected {}'.format(self.source_name, ', '.join(sorted(values)),
                                                        ', '.join(sorted(names))),
                           'rename them, or name the layers')
    else:
      items = tf.nest.flatten(values) if isinstance(values, (list, tuple)) else [values]
      if len(items) != len(names):
        raise InvalidValue('there must be {} for each {} of the model'.format(
                               values_kind, names_kind),
                           '{}: {} for {}'.format(self.source_name, len(items), ', '.join(names)),
                           'give a tuple in this order, or a dict by these names')
      values = dict(zip(names, items))
    return {name: None if value is None else _to_tensor(value) for name, value in values.items()}

  def _cast(self, kind: str, name: str, tensor: Any, expected: Any) -> Any:
    """Casts a tensor to the type that the model takes.

    A number that exceeds the range of an integer type ends the run. `fit` would silently change the
    number.
    """
    old, new = tensor.dtype, expected.dtype
    if _kind_of(tensor) != _kind_of(expected) or (old != new and tf.string in (old, new)):
      raise self._make_misfit_error(kind, name, tensor, expected)
    if old == new:
      return tensor
    values = tensor.flat_values if isinstance(tensor, tf.RaggedTensor) else (
        tensor.values if isinstance(tensor, tf.SparseTensor) else tensor)
    if new.is_integer and (not old.is_integer or old.min < new.min or old.max > new.max) and (
        old != tf.bool):
      with tf.control_dependencies([tf.Assert(
          # As in `fit`, numbers are rounded towards 0.
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

  def _make_misfit_error(self, kind: str, name: str, tensor: Any, expected: Any) -> InvalidValue:
    found, wanted = ('{}{} {}'.format(_kind_of(each), each.dtype.name, each.shape)
                     for each in (tensor, expected))
    return InvalidValue(
        'the {} do not fit the model'.format(kind),
        '{}: {} is {}, expected {}'.format(self.source_name, name, found, wanted),
        'change their shape or dtype, or the model; a split of a data set yields single examples, '
        'an input_fn batches' if _kind_of(tensor) == _kind_of(expected) else
        'convert them, such as with tf.sparse.to_dense, or declare the input with '
        'tf.keras.Input(sparse=True) or (ragged=True)')


def can_have_shape_of(tensor: Any, expected: Any) -> bool:
  """Returns whether a tensor can have the shape of an input or output, for any batch size."""
  return None in (tensor.shape.ndims, expected.shape.ndims) or bool(
      tensor.shape[1:].is_compatible_with(expected.shape[1:])
      and tensor.shape.ndims == expected.shape.ndims)


def _kind_of(tensor: Any) -> str:
  """Returns what precedes the dtype of a tensor in messages; '' if the tensor is dense."""
  return ('sparse ' if isinstance(tensor, tf.SparseTensor) else
          'ragged ' if isinstance(tensor, tf.RaggedTensor) else '')


def _to_tensor(value: Any) -> Any:
  return value if isinstance(value, tf.RaggedTensor) else (
      tf.convert_to_tensor_or_sparse_tensor(value))


def _numbers_as_column(tensor: Any) -> Any:
  """Returns numbers [B] as a column [B, 1]; returns other tensors unchanged."""
  tensor = _to_tensor(tensor)
  is_flat = isinstance(tensor, tf.Tensor) and tensor.shape.ndims == 1
  return tensor[:, tf.newaxis] if is_flat and tensor.dtype != tf.string else tensor


def _with_last_dimension(label: Any, target: tf.Tensor) -> Any:
  """Adds a last dimension of 1 if the labels have one dimension less than the target."""
  has_rank = isinstance(label, tf.Tensor) and None not in (label.shape.ndims, target.shape.ndims)
  if has_rank and label.shape.ndims > 1 and label.shape.ndims == target.shape.ndims - 1:
    return label[..., tf.newaxis]
  return _as_column(label, target)


def _as_column(tensor: Any, expected: tf.Tensor) -> Any:
  """Reshapes a tensor [B] to [B, 1] if the model takes a tensor of higher rank there.

  The rank of a tensor may be unknown until the graph is executed.
  """
  if isinstance(tensor, tf.Tensor) and expected.shape.ndims is not None and (
      expected.shape.ndims > 1):
    if tensor.shape.ndims == 1:
      return tensor[:, tf.newaxis]
    if tensor.shape.ndims is None:
      ones = tf.ones([tf.cast(tf.equal(tf.rank(tensor), 1), tf.int32)], tf.int32)
      column = tf.reshape(tensor, tf.concat([tf.shape(tensor), ones], 0))
      if expected.shape.as_list()[1:] == [1]:
        column.set_shape([None, 1])
      return column
  return tensor
