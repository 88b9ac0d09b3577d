"""Converts the model to TensorFlow Lite with the converter of TensorFlow 1.15."""

import os
import re

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.models import probabilities
from estimator_train.tf_patches.environment import converter_on_path

TFLITE_FILE = 'model.tflite'


def write_tflite(folder: str, model: tf.keras.Model, session: tf.Session,
                 has_classes: bool) -> None:
  """Writes the TensorFlow Lite model, for one example.

  The inputs of the written model are the inputs of the Keras model: for images, scaled pixel
  values, float32 [1, height, width, C]. With classes, its output is class probabilities, float32
  [1, num_classes]; otherwise, it has the outputs of the Keras model.

  Args:
    folder: the folder to write to.
    model: the model, in the default graph.
    session: the session that holds the weights of the model.
    has_classes: whether the outputs are probabilities or logits of classes.

  Raises:
    UserError: the converter does not support an operation of the model.
  """
  if has_feature_columns(model):  # The converter would be aborted without naming an operation.
    raise UserError('TensorFlow 1.15\'s converter to TFLite cannot convert the model',
                    'it has a layer DenseFeatures', 'give --export_format=saved_model')
  outputs = ([probabilities.from_outputs(model, model.outputs[0])] if has_classes
             else model.outputs)
  converter = tf.lite.TFLiteConverter.from_session(session, model.inputs, outputs)
  with converter_on_path():
    try:
      converted = converter.convert()
    except Exception as error:  # The message of the error is the output of the converter.
      raise UserError('TensorFlow 1.15\'s converter to TFLite cannot convert the model',
                      _failure_reason(str(error)),
                      'give --export_format=saved_model or h5') from error
  atomic.write_bytes(os.path.join(folder, TFLITE_FILE), converted)


def has_feature_columns(model: tf.keras.Model) -> bool:
  """Returns whether a model has feature columns, which few formats can represent."""
  return any(isinstance(layer, tf.keras.layers.DenseFeatures)
             or (isinstance(layer, tf.keras.Model) and has_feature_columns(layer))
             for layer in model.layers)


def _failure_reason(text: str) -> str:
  """Returns the unsupported operations, or the last line of the converter's output."""
  match = re.search(r'list of operators for which you will need custom implementations: ([\w, ]+)',
                    text)
  if match:
    return 'unsupported operations: ' + match.group(1).strip()
  return (text.strip().splitlines() or ['unknown reason'])[-1]
