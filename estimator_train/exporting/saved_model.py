"""Writes a SavedModel with two signatures: one for files or records, one for tensors.

For images, the input of the signature `serving_default` is `image_bytes`, string [B]: the contents
of JPEG or PNG files of any size. The graph decodes, resizes and scales the images as in training.
The input of the signature `images` is also called `images`, float32 [B, height, width, C]: pixel
values that have already been scaled for the network. Both signatures return

  probabilities: float32 [B, num_classes];
  labels: string [B, num_classes], the class names in the same order; repeated for each example,
    because TensorFlow Serving requires all outputs to have the batch dimension;
  top_probabilities: float32 [B, K], the K largest probabilities;
  top_labels: string [B, K], the names of their classes.

For other examples, the inputs of the signature `serving_default` are the inputs of the model, by
name. The input of the signature `examples` is also called `examples`, string [B]: serialized
tf.train.Example protocol buffers, with a feature for each input of the model. Both signatures
return the outputs of the model by name or, with classes, the same as for images.
"""

import logging
import os
from typing import Any, Callable, Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import TOP_K
from estimator_train.errors import UserError
from estimator_train.exporting import serving_warm_up, trained_model
from estimator_train.files import atomic
from estimator_train.inputs import images
from estimator_train.models import model_inputs, probabilities
from estimator_train.run_dir import run_files

DEFAULT_SIGNATURE = 'serving_default'
IMAGES_SIGNATURE, EXAMPLES_SIGNATURE = 'images', 'examples'
_LOG = logging.getLogger('estimator_train')
_CHANNELS = (1, 3)

Tensors = Dict[str, tf.Tensor]


def write_image_model(folder: str, model: tf.keras.Model, session: tf.Session,
                      preprocess: Callable[[tf.Tensor], tf.Tensor],
                      class_names: Sequence[str]) -> None:
  """Writes the SavedModel of a classifier of images, the class names and the warm-up requests.

  Args:
    folder: an empty folder to write to.
    model: the model, in the default graph.
    session: the session that holds the weights of the model.
    preprocess: the function that scales pixel values for the model.
    class_names: the class names.

  Raises:
    UserError: the model takes a number of channels other than 1 or 3.
  """
  _write(folder, model, session, class_names, {
      DEFAULT_SIGNATURE: _signature(*_image_file_tensors(model, preprocess, class_names)),
      IMAGES_SIGNATURE: _signature({'images': model.inputs[0]},
                                   _class_tensors(model, model.outputs[0], class_names)),
  })
  height, width, channels = model.input_shape[1:]
  black_jpeg = session.run(tf.image.encode_jpeg(tf.zeros((height, width, channels), tf.uint8)))
  serving_warm_up.write_warm_up_requests(folder, {
      DEFAULT_SIGNATURE: {'image_bytes': tf.make_tensor_proto([black_jpeg])},
      IMAGES_SIGNATURE: {'images': tf.make_tensor_proto(0., shape=(1, height, width, channels))},
  })


def write_example_model(folder: str, model: tf.keras.Model, session: tf.Session,
                        class_names: Sequence[str]) -> List[str]:
  """Writes the SavedModel of a model for any examples, and the class names, if there are any.

  Args:
    folder, model, session, class_names: as for write_image_model.

  Returns:
    The names of the signatures. The signature `examples` is left out, with a warning, if an input
    cannot be read from a tf.train.Example.
  """
  def name_outputs(tensors: Tensors) -> Tensors:
    if class_names:
      (tensor,) = tensors.values()
      return _class_tensors(model, tensor, class_names)
    return tensors

  signatures = {DEFAULT_SIGNATURE: _signature(
      dict(zip(model.input_names, model.inputs)),
      name_outputs(dict(zip(model.output_names, model.outputs))))}
  try:
    records, features = _parse_examples(model)
    signatures[EXAMPLES_SIGNATURE] = _signature(
        {'examples': records}, name_outputs(model_inputs.call_model(model, features)))
  except ValueError as error:
    _LOG.warning('the SavedModel has no signature `%s`: %s', EXAMPLES_SIGNATURE, error)
  _write(folder, model, session, class_names, signatures)
  serving_warm_up.write_warm_up_requests(folder, {DEFAULT_SIGNATURE: {
      name: _make_example_tensor(tensor)
      for name, tensor in zip(model.input_names, model.inputs)}})
  return list(signatures)


def _make_example_tensor(tensor: tf.Tensor) -> Any:
  """Returns a TensorProto for an input of the model, with one example of zeros or empty strings."""
  shape = [size or 1 for size in tensor.shape.as_list()]
  value: Any = b'' if tensor.dtype == tf.string else 0
  return tf.make_tensor_proto(value, tensor.dtype, shape)


def _parse_examples(model: tf.keras.Model) -> Tuple[tf.Tensor, Tensors]:
  """Returns the tensor of serialized examples, and the inputs of the model that they contain.

  Raises:
    ValueError: an input has a shape or dtype that tf.io.parse_example does not support.
  """
  schema = {name: _make_feature(name, tensor)
            for name, tensor in zip(model.input_names, model.inputs)}
  records = tf.placeholder(tf.string, [None], name='examples')
  parsed = tf.io.parse_example(records, schema)
  return records, {name: tf.cast(parsed[name], tensor.dtype) if parsed[name].dtype != tensor.dtype
                   else parsed[name] for name, tensor in zip(model.input_names, model.inputs)}


def _make_feature(name: str, tensor: tf.Tensor) -> Any:
  """Returns the feature of tf.io.parse_example for an input of the model."""
  shape = tensor.shape.as_list()[1:]
  dtype = (tf.int64 if tensor.dtype.is_integer or tensor.dtype.is_bool else
           tf.float32 if tensor.dtype.is_floating else tensor.dtype)
  if None not in shape:
    return tf.io.FixedLenFeature(shape, dtype)
  if shape[0] is None and None not in shape[1:]:  # A sequence, padded with zeros.
    return tf.io.FixedLenSequenceFeature(shape[1:], dtype, allow_missing=True)
  raise ValueError('the input {} has the shape {}'.format(name, shape))


def _write(folder: str, model: tf.keras.Model, session: tf.Session, class_names: Sequence[str],
           signatures: Dict[str, Any]) -> None:
  """Writes the graph and the weights of the model, and the class names as an asset."""
  builder = tf.saved_model.Builder(folder)
  if class_names:
    asset_path = os.path.join(folder, 'assets', run_files.LABELS_FILE)
    os.makedirs(os.path.dirname(asset_path))
    write_class_names(asset_path, class_names)
    tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, tf.constant(asset_path, name='labels_file'))
  has_tables = bool(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
  builder.add_meta_graph_and_variables(
      session, [tf.saved_model.tag_constants.SERVING], signatures,
      assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
      main_op=tf.tables_initializer() if has_tables else None,
      saver=trained_model.make_saver(model), strip_default_attrs=True)
  builder.save()


def write_class_names(path: str, class_names: Sequence[str]) -> None:
  """Writes the class names, one per line."""
  atomic.write_text(path, '\n'.join(class_names) + '\n')


def _image_file_tensors(model: tf.keras.Model, preprocess: Callable[[tf.Tensor], tf.Tensor],
                        class_names: Sequence[str]) -> Sequence[Tensors]:
  """Returns the inputs and the outputs of the signature for image files."""
  height, width, channels = model.input_shape[1:]
  if channels not in _CHANNELS:
    raise UserError('a SavedModel for image files requires one or three channels',
                    'the model takes {}'.format(channels),
                    'give --export_format=h5, tflite or onnx')
  image_bytes = tf.placeholder(tf.string, [None], name='image_bytes')

  pixels = tf.map_fn(
      lambda content: images.decode_and_resize(content, (height, width, channels)), image_bytes,
      tf.float32, back_prop=False)
  return {'image_bytes': image_bytes}, _class_tensors(
      model, model(preprocess(pixels)), class_names)


def _class_tensors(model: tf.keras.Model, outputs: tf.Tensor,
                   class_names: Sequence[str]) -> Tensors:
  """Returns the outputs of a signature, by name, see the docstring of the module."""
  class_probabilities = probabilities.from_outputs(model, outputs)
  names = tf.constant([name.encode('utf-8') for name in class_names])
  repeated_names = tf.tile(names[tf.newaxis], [tf.shape(class_probabilities)[0], 1])
  repeated_names.set_shape((None, len(class_names)))
  top = tf.math.top_k(class_probabilities, min(TOP_K, len(class_names)))
  return {'probabilities': class_probabilities, 'labels': repeated_names,
          'top_probabilities': top.values, 'top_labels': tf.gather(names, top.indices)}


def _signature(inputs: Tensors, outputs: Tensors) -> Any:
  """Returns the SignatureDef with these inputs and outputs."""
  tensor_infos = [
      {name: tf.saved_model.build_tensor_info(tensor) for name, tensor in tensors.items()}
      for tensors in (inputs, outputs)]
  return tf.saved_model.build_signature_def(
      *tensor_infos, method_name=tf.saved_model.signature_constants.PREDICT_METHOD_NAME)
