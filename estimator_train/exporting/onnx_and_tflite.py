"""Writes ONNX and TensorFlow Lite models, and compares their outputs with those of the checkpoint.

The input of image models is pictures: images of any size, uint8 [N, any, any, C]. With
`--export_input=tensor`, or if the examples are not images, the inputs are those of
restored_model.RestoredModel. A TensorFlow Lite model takes one example. Its pictures have the image
size of the training until the client calls `resize_tensor_input`. If the outputs differ from those
of the checkpoint, the export is not written (see verification.py). tf2onnx, onnx and onnxruntime
are optional (the extra `onnx`), and are therefore imported only during an export.
"""

import contextlib
import json
import logging
import os
import re
import warnings
from typing import Any, Dict, Iterator, List

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.exporting import verification
from estimator_train.exporting.restored_model import PICTURES_INPUT, RestoredModel
from estimator_train.exporting.verification import OTHER_FORMATS, Arrays, ModelFunction
from estimator_train.system import keras_config, storage
from estimator_train.tf_patches.environment import toco_on_path
from estimator_train.tf_patches.keras import nested_layers
from estimator_train.version import __version__

Tensors = Dict[str, tf.Tensor]
ONNX_FILE, TFLITE_FILE = 'model.onnx', 'model.tflite'
_OPSET = 13  # onnxruntime has supported this version of ONNX since its version 1.6 of 2020.
_CANNOT_CONVERT = '{} cannot convert the model'
_TFLITE_CONVERTER = "TensorFlow 1.15's converter to TFLite"


def write_onnx(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the ONNX model to the folder, and returns the names of its inputs and outputs.

  Raises:
    UserError: the model cannot be converted, or the result is wrong.
  """
  if restored.exports_take_pictures:
    restored = restored.with_picture_input(tf.uint8)
  inputs, outputs = restored.inputs, restored.outputs
  string_inputs = [name for name, tensor in inputs.items() if tensor.dtype == tf.string]
  if string_inputs:
    raise UserError('inputs of an ONNX model must be numbers',
                    'strings: ' + ', '.join(string_inputs), 'give --export_format=saved_model')
  with _without_converter_log(restored.settings.run.verbosity):
    try:
      model = _convert_to_onnx(restored.session, inputs, outputs)
      _add_metadata(model, dict(inputs, **outputs), restored.describe_inputs())
    except Exception as error:  # tf2onnx has no exception class of its own.
      raise UserError(_CANNOT_CONVERT.format('tf2onnx'), _last_line(error),
                      OTHER_FORMATS) from error
  path = os.path.join(folder, ONNX_FILE)
  storage.write_bytes(path, model.SerializeToString())
  verification.verify(verification.make_batches(restored), lambda: _load_onnx(path), 'ONNX',
                      'onnxruntime')
  return {'inputs': list(inputs), 'outputs': list(outputs)}


@contextlib.contextmanager
def _without_converter_log(verbosity: int) -> Iterator[None]:
  """Hides the log and the warnings of tf2onnx in a `with` block if `verbosity` is below 1."""
  log = logging.getLogger('tf2onnx')
  level = log.level
  with warnings.catch_warnings():
    if verbosity < 1:
      warnings.simplefilter('ignore')
      log.setLevel(logging.CRITICAL + 1)
    try:
      yield
    finally:
      log.setLevel(level)


def _convert_to_onnx(session: tf.Session, inputs: Tensors, outputs: Tensors) -> Any:
  """Returns the ONNX model. Its inputs and outputs have the names in the dicts."""
  from tf2onnx import convert

  with session.graph.as_default():
    # A tensor can be several outputs, or both an input and an output. The ONNX model needs distinct
    # tensors.
    outputs = {name: tf.identity(tensor) for name, tensor in outputs.items()}
  names = {tensor.name: name for tensors in (inputs, outputs) for name, tensor in tensors.items()}
  frozen = tf.graph_util.convert_variables_to_constants(
      session, session.graph_def, [name.rpartition(':')[0] for name in names])
  model, _ = convert.from_graph_def(
      frozen, 'estimator_train', *([tensor.name for tensor in tensors.values()]
                                   for tensors in (inputs, outputs)),
      opset=_OPSET, tensors_to_rename=names)
  return model


def _add_metadata(model: Any, tensors: Tensors, description: Dict[str, Any]) -> None:
  """Sets the sizes or names of the dimensions, the producer and the metadata of an ONNX model."""
  import onnx.helper
  import tf2onnx

  for value in list(model.graph.input) + list(model.graph.output):
    sizes = tensors[value.name].shape.as_list()
    for index, (size, dimension) in enumerate(zip(sizes, value.type.tensor_type.shape.dim)):
      if size is not None:
        dimension.dim_value = size
      else:
        dimension.dim_param = '{}_{}'.format(value.name, index) if index else 'N'
  model.producer_name, model.producer_version = 'estimator_train', __version__
  metadata = {'converter': 'tf2onnx ' + tf2onnx.__version__}
  metadata['preprocessing'] = json.dumps(description)
  if description['class_names']:
    metadata['class_names'] = json.dumps(description['class_names'])
  onnx.helper.set_model_props(model, metadata)


def _load_onnx(path: str) -> ModelFunction:
  """Returns an ONNX model as a function that onnxruntime computes.

  Optimizations of onnxruntime are disabled. They are not part of the exported file, and onnxruntime
  1.10 fails to optimize some loops, such as those of masked LSTM layers.
  """
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4  # Logs only fatal errors. Exceptions report other errors.
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
  output_names = [output.name for output in session.get_outputs()]
  input_names = [value.name for value in session.get_inputs()]  # Unused inputs are missing.
  return lambda inputs: dict(zip(output_names, session.run(
      output_names, {name: inputs[name] for name in input_names})))


def write_tflite(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the TensorFlow Lite model to the folder, and verifies it.

  The converter makes some models wrong, for example if batch norm follows Flatten.

  Raises:
    UserError: the converter does not support an operation of the model, or its result is wrong.
  """
  if any(isinstance(layer, tf.keras.layers.DenseFeatures)
         for layer in nested_layers(restored.keras_model)):
    # The converter would abort without a message.
    raise UserError(_CANNOT_CONVERT.format(_TFLITE_CONVERTER), 'it has a layer DenseFeatures',
                    'give --export_format=saved_model')
  if restored.exports_take_pictures:
    restored = restored.with_picture_input(tf.float32)
  # The batches are made before the conversion, because the converter sets the batch size to 1.
  batches = verification.make_batches(restored)
  converter = tf.lite.TFLiteConverter.from_session(
      restored.session, list(restored.inputs.values()), list(restored.outputs.values()))
  if restored.exports_take_pictures:
    assert restored.image_shape is not None
    # Pictures have this size until the client calls `resize_tensor_input`. The converter replaces
    # the float input by a uint8 input. The statistics (mean 0, deviation 1) keep its values.
    restored.inputs[PICTURES_INPUT].set_shape((1,) + restored.image_shape)
    converter.inference_input_type = tf.uint8
    converter.quantized_input_stats = {restored.inputs[PICTURES_INPUT].op.name: (0., 1.)}
  # The converter is a command that imports Keras, which would read the user's keras.json.
  with keras_config.ignore_keras_json(), toco_on_path():
    try:
      converted = converter.convert()
    except Exception as error:  # The message of the error is the output of the converter.
      raise UserError(_CANNOT_CONVERT.format(_TFLITE_CONVERTER),
                      _describe_tflite_failure(error), OTHER_FORMATS) from error
  path = os.path.join(folder, TFLITE_FILE)
  storage.write_bytes(path, converted)
  verification.verify(batches, lambda: _load_tflite(path, list(restored.outputs)), 'TFLite',
                      'tf.lite.Interpreter')
  return {}


def _load_tflite(path: str, output_names: List[str]) -> ModelFunction:
  """Returns a TensorFlow Lite model as a function that takes any number of examples."""
  interpreter = tf.lite.Interpreter(path)
  details = interpreter.get_input_details()
  interpreter.allocate_tensors()

  def compute_outputs_of_example(example: List[np.ndarray]) -> List[Any]:
    if details[0]['dtype'] == np.uint8:  # Pictures.
      interpreter.resize_tensor_input(details[0]['index'], (1,) + example[0].shape)
      interpreter.allocate_tensors()
    for detail, array in zip(details, example):
      interpreter.set_tensor(detail['index'], array[np.newaxis])
    interpreter.invoke()
    return [interpreter.get_tensor(detail['index'])
            for detail in interpreter.get_output_details()]

  def compute_outputs(inputs: Arrays) -> Arrays:
    rows = [compute_outputs_of_example(list(example)) for example in zip(*inputs.values())]
    return dict(zip(output_names, map(np.concatenate, zip(*rows))))

  return compute_outputs


def _describe_tflite_failure(error: Exception) -> str:
  """Returns the unsupported operations, or the last line of the converter's output."""
  match = re.search(r'list of operators for which you will need custom implementations: ([\w, ]+)',
                    str(error))
  return 'unsupported operations: ' + match.group(1).strip() if match else _last_line(error)


def _last_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[-1]
