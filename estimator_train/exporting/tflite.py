"""The model for TensorFlow Lite, by the converter of TensorFlow 1.15."""

import os
import re

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.models import probabilities
from estimator_train.tf_patches.converter_command import own_commands_first

FILE = 'model.tflite'


def write(folder: str, model: tf.keras.Model, session: tf.Session) -> None:
  """Writes the model: float32 [1, height, width, C], scaled, to probabilities [1, num_classes].

  Args:
    folder: to write it to.
    model: in the default graph.
    session: that has its weights.

  Raises:
    UserError: the converter does not know an operation of the model.
  """
  outputs = probabilities.from_outputs(model, model.outputs[0])
  converter = tf.lite.TFLiteConverter.from_session(session, model.inputs, [outputs])
  with own_commands_first():
    try:
      converted = converter.convert()
    except Exception as error:  # It raises what the converter's own process printed.
      raise UserError('TensorFlow 1.15\'s converter to TFLite cannot convert the model',
                      _reason(str(error)), 'give --export_format=saved_model or h5') from error
  atomic.write_bytes(os.path.join(folder, FILE), converted)


def _reason(text: str) -> str:
  """Returns which operations it is about, else what it says last."""
  match = re.search(r'list of operators for which you will need custom implementations: ([\w, ]+)',
                    text)
  if match:
    return 'it has no ' + match.group(1).strip()
  return (text.strip().splitlines() or ['no reason is given'])[-1]
