"""Writes a SavedModel with two signatures: one for image files, one for preprocessed tensors.

The input of the signature `serving_default` is `image_bytes`, string [B]: the contents of JPEG or
PNG files of any size. The graph decodes, resizes and scales the images as in training. The input of
the signature `images` is also called `images`, float32 [B, height, width, C]: pixel values that
have already been scaled for the network. Both signatures return

  probabilities: float32 [B, num_classes];
  labels: string [B, num_classes], the class names in the same order; repeated for each example,
    because TensorFlow Serving requires all outputs to have the batch dimension;
  top_probabilities: float32 [B, K], the K largest probabilities;
  top_labels: string [B, K], the names of their classes.
"""

import os
from typing import Any, Callable, Dict, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import TOP_K
from estimator_train.errors import UserError
from estimator_train.exporting import serving_warm_up, trained_model
from estimator_train.files import atomic
from estimator_train.inputs import images
from estimator_train.models import probabilities
from estimator_train.run_dir import run_files

BYTES_SIGNATURE, TENSOR_SIGNATURE = 'serving_default', 'images'
_CHANNELS = (1, 3)

Tensors = Dict[str, tf.Tensor]


def write_saved_model(folder: str, model: tf.keras.Model, session: tf.Session,
                      preprocess: Callable[[tf.Tensor], tf.Tensor],
                      class_names: Sequence[str]) -> None:
  """Writes the SavedModel, the class names and the warm-up requests.

  Args:
    folder: an empty folder to write to.
    model: the model, in the default graph.
    session: the session that holds the weights of the model.
    preprocess: the function that scales pixel values for the model.
    class_names: the class names.

  Raises:
    UserError: the model takes a number of channels other than 1 or 3.
  """
  signatures = {
      BYTES_SIGNATURE: _signature(*_image_file_tensors(model, preprocess, class_names)),
      TENSOR_SIGNATURE: _signature({'images': model.inputs[0]},
                                   _output_tensors(model, model.outputs[0], class_names)),
  }
  builder = tf.saved_model.Builder(folder)
  asset_path = os.path.join(folder, 'assets', run_files.LABELS_FILE)
  os.makedirs(os.path.dirname(asset_path))
  write_class_names(asset_path, class_names)
  tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, tf.constant(asset_path, name='labels_file'))
  builder.add_meta_graph_and_variables(
      session, [tf.saved_model.tag_constants.SERVING], signatures,
      assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
      saver=trained_model.make_saver(model), strip_default_attrs=True)
  builder.save()
  height, width, channels = model.input_shape[1:]
  black_jpeg = session.run(tf.image.encode_jpeg(tf.zeros((height, width, channels), tf.uint8)))
  serving_warm_up.write_warm_up_requests(folder, {
      BYTES_SIGNATURE: {'image_bytes': tf.make_tensor_proto([black_jpeg])},
      TENSOR_SIGNATURE: {'images': tf.make_tensor_proto(0., shape=(1, height, width, channels))},
  })


def write_class_names(path: str, class_names: Sequence[str]) -> None:
  """Writes the class names, one per line."""
  atomic.write_text(path, '\n'.join(class_names) + '\n')


def _image_file_tensors(model: tf.keras.Model, preprocess: Callable[[tf.Tensor], tf.Tensor],
                        class_names: Sequence[str]) -> Sequence[Tensors]:
  """Returns the inputs and the outputs of the signature for image files."""
  height, width, channels = model.input_shape[1:]
  if channels not in _CHANNELS:
    raise UserError('a SavedModel for image files requires one or three channels',
                    'the model takes {}'.format(channels), 'give --export_format=h5 or tflite')
  image_bytes = tf.placeholder(tf.string, [None], name='image_bytes')

  pixels = tf.map_fn(
      lambda content: images.decode_and_resize(content, (height, width, channels)), image_bytes,
      tf.float32, back_prop=False)
  return {'image_bytes': image_bytes}, _output_tensors(
      model, model(preprocess(pixels)), class_names)


def _output_tensors(model: tf.keras.Model, outputs: tf.Tensor,
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
