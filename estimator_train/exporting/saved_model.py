"""Writes a SavedModel with signatures for files or records, for pictures and for tensors.

For images, there are three signatures:

  serving_default: the input `image_bytes`, string [B], has the contents of JPEG or PNG files of any
    size. The graph decodes, resizes and scales the images as in training.
  pictures: the input `pictures`, uint8 [B, any, any, C], has decoded images. The graph resizes and
    scales them.
  images: the input `images`, float32 [B, height, width, C], has pixel values that have already been
    scaled for the network.

All three signatures return

  probabilities: float32 [B, num_classes].
  labels: string [B, num_classes], the class names in the same order. They are repeated for each
    example, because TensorFlow Serving requires all outputs to have the batch dimension.
  top_probabilities: float32 [B, K], the K largest probabilities.
  top_labels: string [B, K], the names of their classes.

If the examples are not images, or with `--export_input=tensor`, there are two signatures:

  serving_default: the inputs are the inputs of the model, by name.
  examples: the input `examples`, string [B], has serialized tf.train.Example protocol buffers, with
    a feature for each input of the model.

Both return the outputs of the model by name or, if there are classes, the four outputs above.

`assets.extra/tf_serving_warmup_requests` has requests that TensorFlow Serving sends to the model
before serving it. Each request is a record with a protocol buffer
`tensorflow.serving.PredictionLog`. TensorFlow does not contain this class. This module therefore
encodes the necessary fields itself. All of them are nested messages or strings.
"""

import logging
import os
from typing import Any, Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.data import TOP_K, decoding
from estimator_train.errors import UserError
from estimator_train.exporting.restored_model import (
  PICTURES_INPUT,
  PROBABILITIES_OUTPUT,
  RestoredModel,
)
from estimator_train.run_dir import LABELS_FILE
from estimator_train.system import storage

DEFAULT_SIGNATURE = 'serving_default'
IMAGES_SIGNATURE, EXAMPLES_SIGNATURE = 'images', 'examples'
WARM_UP_FILE = os.path.join('assets.extra', 'tf_serving_warmup_requests')
_CHANNELS = (1, 3)
# Field numbers of TensorFlow Serving's prediction_log.proto, predict.proto and model.proto.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_SPEC, _REQUEST_INPUTS = 1, 2
_SPEC_SIGNATURE = 3
_KEY, _VALUE = 1, 2  # The fields of an entry in a map.
_LENGTH_DELIMITED = 2  # The wire type of all these fields.
_LOG = logging.getLogger('estimator_train')

Tensors = Dict[str, tf.Tensor]


def write_saved_model(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the SavedModel, the class names and the warm-up requests. Returns the signatures.

  If an input cannot be read from a tf.train.Example, the signature `examples` is omitted, and a
  warning is logged.

  Raises:
    UserError: the model takes images with a number of channels other than 1 or 3.
  """
  tensor_signature = restored.inputs, _make_signature_outputs(restored, restored.outputs)
  signatures, jpeg = {DEFAULT_SIGNATURE: tensor_signature}, b''
  if restored.exports_take_pictures:
    assert restored.image_shape is not None
    pictures = restored.with_picture_input(tf.uint8)
    signatures = {DEFAULT_SIGNATURE: _make_image_file_signature(restored, restored.image_shape),
                  PICTURES_INPUT: (pictures.inputs,
                                   _make_signature_outputs(restored, pictures.outputs)),
                  IMAGES_SIGNATURE: tensor_signature}
    jpeg = restored.session.run(tf.image.encode_jpeg(tf.zeros(restored.image_shape, tf.uint8)))
  # Each request has one example: a JPEG file if the input is a file, zeros otherwise.
  requests = {signature: {name: tf.make_tensor_proto(
      jpeg if tensor.dtype == tf.string else 0, tensor.dtype,
      [size or 1 for size in tensor.shape.as_list()]) for name, tensor in inputs.items()}
              for signature, (inputs, _) in signatures.items()}
  if not restored.exports_take_pictures:
    try:
      signatures[EXAMPLES_SIGNATURE] = _make_examples_signature(restored)
    except ValueError as error:
      _LOG.warning('the SavedModel has no signature `%s`: %s', EXAMPLES_SIGNATURE, error)
  _write_model(folder, restored, signatures)
  write_warm_up_requests(folder, requests)
  return {'signatures': list(signatures)}


def _make_image_file_signature(restored: RestoredModel,
                               shape: Tuple[int, int, int]) -> Tuple[Tensors, Tensors]:
  """Returns the inputs and outputs of the signature that takes the contents of image files."""
  if shape[2] not in _CHANNELS:
    raise UserError('a SavedModel for image files requires one or three channels',
                    'the model takes {}'.format(shape[2]),
                    'give --export_input=tensor, or --export_format=h5, tflite or onnx')
  image_bytes = tf.placeholder(tf.string, [None], name='image_bytes')
  pixels = tf.map_fn(lambda content: decoding.decode_and_resize(content, shape), image_bytes,
                     tf.float32, back_prop=False)
  return {'image_bytes': image_bytes}, _make_signature_outputs(restored, restored.make_outputs(
      restored.preprocess(pixels)))


def _make_examples_signature(restored: RestoredModel) -> Tuple[Tensors, Tensors]:
  """Returns the inputs and outputs of the signature that takes serialized examples.

  Raises:
    ValueError: an input has a shape or dtype that tf.io.parse_example does not support.
  """
  schema = {name: _make_feature(name, tensor) for name, tensor in restored.inputs.items()}
  records = tf.placeholder(tf.string, [None], name='examples')
  parsed = tf.io.parse_example(records, schema)
  return {'examples': records}, _make_signature_outputs(restored, restored.make_outputs([
      tf.cast(parsed[name], tensor.dtype) for name, tensor in restored.inputs.items()]))


def _make_signature_outputs(restored: RestoredModel, outputs: Tensors) -> Tensors:
  """Returns the outputs of a signature by name; see the docstring of the module."""
  class_names = restored.spec.labels
  if not class_names:
    return outputs
  class_probabilities = outputs[PROBABILITIES_OUTPUT]
  names = tf.constant([name.encode('utf-8') for name in class_names])
  repeated_names = tf.tile(names[tf.newaxis], [tf.shape(class_probabilities)[0], 1])
  repeated_names.set_shape((None, len(class_names)))
  top = tf.math.top_k(class_probabilities, min(TOP_K, len(class_names)))
  return {PROBABILITIES_OUTPUT: class_probabilities, 'labels': repeated_names,
          'top_probabilities': top.values, 'top_labels': tf.gather(names, top.indices)}


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


def _write_model(folder: str, restored: RestoredModel,
                 signatures: Dict[str, Tuple[Tensors, Tensors]]) -> None:
  """Writes the graph and the weights of the model, and the class names as an asset."""
  builder = tf.saved_model.Builder(folder)
  if restored.spec.labels:
    asset_path = os.path.join(folder, 'assets', LABELS_FILE)
    os.makedirs(os.path.dirname(asset_path))
    write_class_names(asset_path, restored.spec.labels)
    tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, tf.constant(asset_path, name='labels_file'))
  has_tables = bool(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS))
  definitions = {name: tf.saved_model.predict_signature_def(*tensors)
                 for name, tensors in signatures.items()}
  # The graph was built for the CPU. Where it is served, TensorFlow may use GPUs.
  builder.add_meta_graph_and_variables(
      restored.session, [tf.saved_model.tag_constants.SERVING], definitions,
      assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
      main_op=tf.tables_initializer() if has_tables else None,
      saver=tf.train.Saver({weight.op.name: weight
                             for weight in restored.keras_model.weights}), strip_default_attrs=True,
      clear_devices=True)
  builder.save()


def write_class_names(path: str, class_names: Sequence[str]) -> None:
  storage.write_text(path, '\n'.join(class_names) + '\n')


def write_warm_up_requests(folder: str, requests: Dict[str, Dict[str, Any]]) -> None:
  """Writes a file of warm-up requests to the folder of a SavedModel.

  Args:
    requests: for each signature, the TensorProtos of its inputs by name.
  """
  path = os.path.join(folder, WARM_UP_FILE)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with tf.io.TFRecordWriter(path) as file:
    for signature, inputs in requests.items():
      request = _encode_field(_REQUEST_SPEC, _encode_field(_SPEC_SIGNATURE, signature.encode()))
      for name, tensor in inputs.items():
        request += _encode_field(_REQUEST_INPUTS, _encode_field(_KEY, name.encode())
                                 + _encode_field(_VALUE, tensor.SerializeToString()))
      file.write(_encode_field(_LOG_PREDICT, _encode_field(_PREDICT_REQUEST, request)))


def _encode_field(number: int, content: bytes) -> bytes:
  return bytes([number << 3 | _LENGTH_DELIMITED]) + _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
  """Encodes seven bits per byte, lowest bits first. The eighth bit is set if more bytes follow."""
  if number < 128:
    return bytes([number])
  return bytes([number % 128 | 128]) + _encode_varint(number // 128)
