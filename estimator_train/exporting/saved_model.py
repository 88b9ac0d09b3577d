"""The SavedModel, with a signature for files of images and one for the tensor of the network.

`serving_default` takes `image_bytes`, string [B]: the contents of JPEG or PNG files of any size.
They are decoded, resized and scaled in the graph, as in training. `images` takes `images`, float32
[B, height, width, C]: pixels as the network itself takes them, scaled already. Both return

  probabilities: float32 [B, num_classes];
  labels: string [B, num_classes], the classes' names in that order, in each row the same:
    TensorFlow Serving wants every output to have a row for each example;
  top_probabilities: float32 [B, K], the largest of them;
  top_labels: string [B, K], their names.
"""

import os
from typing import Callable, Dict, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import TOP_K
from estimator_train.errors import UserError
from estimator_train.exporting import serving_warm_up, trained_model
from estimator_train.files import atomic
from estimator_train.inputs import image_files
from estimator_train.models import probabilities
from estimator_train.run_dir import run_files

BYTES, TENSOR = 'serving_default', 'images'
_CHANNELS = (1, 3)

Tensors = Dict[str, tf.Tensor]


def write(folder: str, model: tf.keras.Model, session: tf.Session,
          preprocess: Callable[[tf.Tensor], tf.Tensor], labels: Sequence[str]) -> None:
  """Writes the SavedModel, its labels and its warm-up requests.

  Args:
    folder: to write them to; it is empty.
    model: in the default graph.
    session: that has its weights.
    preprocess: what scales the pixels for it.
    labels: the classes' names.

  Raises:
    UserError: images have not so many channels as the model takes.
  """
  signatures = {
      BYTES: _signature(*_from_bytes(model, preprocess, labels)),
      TENSOR: _signature({'images': model.inputs[0]}, _outputs(model, model.outputs[0], labels)),
  }
  builder = tf.saved_model.Builder(folder)
  asset = os.path.join(folder, 'assets', run_files.LABELS_FILE)
  os.makedirs(os.path.dirname(asset))
  write_labels(asset, labels)
  tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, tf.constant(asset, name='labels_file'))
  builder.add_meta_graph_and_variables(
      session, [tf.saved_model.tag_constants.SERVING], signatures,
      assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
      saver=trained_model.saver(model), strip_default_attrs=True)
  builder.save()
  height, width, channels = model.input_shape[1:]
  black = session.run(tf.image.encode_jpeg(tf.zeros((height, width, channels), tf.uint8)))
  serving_warm_up.write(folder, {
      BYTES: {'image_bytes': tf.make_tensor_proto([black])},
      TENSOR: {'images': tf.make_tensor_proto(0., shape=(1, height, width, channels))},
  })


def write_labels(path: str, labels: Sequence[str]) -> None:
  """Writes the classes' names, one a line."""
  atomic.write_text(path, '\n'.join(labels) + '\n')


def _from_bytes(model: tf.keras.Model, preprocess: Callable[[tf.Tensor], tf.Tensor],
                labels: Sequence[str]) -> Sequence[Tensors]:
  """Returns the inputs and the outputs of the signature that takes files."""
  height, width, channels = model.input_shape[1:]
  if channels not in _CHANNELS:
    raise UserError('JPEGs and PNGs are decoded to one channel or three',
                    'a model that takes {}'.format(channels), 'give --export_format=h5 or tflite')
  image_bytes = tf.placeholder(tf.string, [None], name='image_bytes')

  def load(content: tf.Tensor) -> tf.Tensor:
    return image_files.resize(image_files.decode_content(content, channels), height, width)

  pixels = tf.map_fn(load, image_bytes, tf.float32, back_prop=False)
  return {'image_bytes': image_bytes}, _outputs(model, model(preprocess(pixels)), labels)


def _outputs(model: tf.keras.Model, outputs: tf.Tensor, labels: Sequence[str]) -> Tensors:
  of_classes = probabilities.from_outputs(model, outputs)
  names = tf.constant([label.encode('utf-8') for label in labels])
  of_rows = tf.tile(names[tf.newaxis], [tf.shape(of_classes)[0], 1])
  of_rows.set_shape((None, len(labels)))
  top = tf.math.top_k(of_classes, min(TOP_K, len(labels)))
  return {'probabilities': of_classes, 'labels': of_rows, 'top_probabilities': top.values,
          'top_labels': tf.gather(names, top.indices)}


def _signature(inputs: Tensors, outputs: Tensors) -> tf.saved_model.build_signature_def:
  infos = [{name: tf.saved_model.build_tensor_info(tensor) for name, tensor in tensors.items()}
           for tensors in (inputs, outputs)]
  return tf.saved_model.build_signature_def(
      *infos, method_name=tf.saved_model.signature_constants.PREDICT_METHOD_NAME)
