"""Converts a model to TensorFlow Lite with TensorFlow 1.15, and verifies the result.

The written model is for one example. Its inputs are those of the Keras model: for images, scaled
pixel values, float32 [1, height, width, C]. With classes, its output is class probabilities,
float32 [1, num_classes]; otherwise, it has the outputs of the Keras model.
"""

import os
import re
from typing import Any, Dict, List

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.exporting import verification
from estimator_train.exporting.trained_model import RestoredModel
from estimator_train.system import atomic
from estimator_train.tf_patches.sessions import converter_on_path

TFLITE_FILE = 'model.tflite'
_CANNOT_CONVERT = 'TensorFlow 1.15\'s converter to TFLite cannot convert the model'


def write(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the TensorFlow Lite model to the folder, and verifies it.

  The converter computes something else for some models, for example if batch norm follows Flatten.

  Raises:
    UserError: the converter does not support an operation of the model, or its result is wrong.
  """
  if _has_feature_columns(restored.keras_model):  # The converter would abort without a reason.
    raise UserError(_CANNOT_CONVERT, 'it has a layer DenseFeatures',
                    'give --export_format=saved_model')
  examples = verification.make_examples(restored)  # The converter sets the size of the batch to 1.
  converter = tf.lite.TFLiteConverter.from_session(
      restored.session, list(restored.inputs.values()), list(restored.outputs.values()))
  with converter_on_path():
    try:
      converted = converter.convert()
    except Exception as error:  # The message of the error is the output of the converter.
      raise UserError(_CANNOT_CONVERT, _failure_reason(str(error)),
                      verification.OTHER_FORMATS) from error
  path = os.path.join(folder, TFLITE_FILE)
  atomic.write_bytes(path, converted)
  verification.verify(examples, lambda: _load(path, list(restored.outputs)), 'TFLite',
                      'tf.lite.Interpreter')
  return {}


def _load(path: str, output_names: List[str]) -> verification.ModelFunction:
  """Returns the function of a TensorFlow Lite model, for any number of examples."""
  interpreter = tf.lite.Interpreter(path)
  interpreter.allocate_tensors()

  def run_one(example: List[np.ndarray]) -> List[Any]:
    for detail, array in zip(interpreter.get_input_details(), example):
      interpreter.set_tensor(detail['index'], array[np.newaxis])
    interpreter.invoke()
    return [interpreter.get_tensor(detail['index'])
            for detail in interpreter.get_output_details()]

  def run(inputs: verification.Arrays) -> verification.Arrays:
    rows = [run_one(list(example)) for example in zip(*inputs.values())]
    return dict(zip(output_names, map(np.concatenate, zip(*rows))))

  return run


def _has_feature_columns(model: tf.keras.Model) -> bool:
  """Returns whether a model has feature columns, also in a model that is a layer."""
  return any(isinstance(layer, tf.keras.layers.DenseFeatures)
             or (isinstance(layer, tf.keras.Model) and _has_feature_columns(layer))
             for layer in model.layers)


def _failure_reason(text: str) -> str:
  """Returns the unsupported operations, or the last line of the converter's output."""
  match = re.search(r'list of operators for which you will need custom implementations: ([\w, ]+)',
                    text)
  if match:
    return 'unsupported operations: ' + match.group(1).strip()
  return (text.strip().splitlines() or ['unknown reason'])[-1]
