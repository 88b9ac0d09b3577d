"""Writes ONNX and TensorFlow Lite models, and compares their outputs with those of the checkpoint.

Models of images take pictures: images of any size, uint8 [N, any, any, C]. With
`--export_input=tensor`, and for other examples, the inputs are those of the SavedModel's signature
for tensors, see trained_model.RestoredModel. A TensorFlow Lite model is for one example; its
pictures have the size that the model was trained with, until `resize_tensor_input` changes it.
The examples of the comparison are random. An export whose outputs differ from those of the
checkpoint is not written. tf2onnx, onnx and onnxruntime belong to the extra `onnx`, so they are
imported only during an export.
"""

import contextlib
import json
import logging
import os
import re
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError, first_line
from estimator_train.exporting.trained_model import PICTURES_INPUT, TENSOR_INPUT, RestoredModel
from estimator_train.system import keras_config, storage
from estimator_train.tf_patches.sessions import toco_on_path
from estimator_train.version import __version__

Tensors = Dict[str, tf.Tensor]
Arrays = Dict[str, np.ndarray]
ModelFunction = Callable[[Arrays], Arrays]  # From inputs to outputs, both by name.
ONNX_FILE, TFLITE_FILE = 'model.onnx', 'model.tflite'
_OPSET = 13  # onnxruntime has supported it since version 1.6 of December 2020.
_CANNOT_CONVERT = '{} cannot convert the model'
_TFLITE_CONVERTER = "TensorFlow 1.15's converter to TFLite"
# The remedy for a model that cannot be converted, or whose exported model is wrong.
_OTHER_FORMATS = 'give --export_format=saved_model or h5'
# An export may have this largest_difference from the checkpoint. ResNet-50 in TFLite has 1.1e-5.
TOLERANCE = 1e-4
_BATCH_SIZES = (1, 3)
_SEED = 2015
# The size of a dimension that the model does not determine, such as the length of a sequence.
_UNKNOWN_DIMENSION_SIZE = 6
# Random integers may be indices, such as those of an embedding. They are less than the first of
# these limits with which the model runs without an error.
_INTEGER_LIMITS = (100, 10, 2, 1)


def write_onnx(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the ONNX model to the folder; returns the names of its inputs and outputs.

  The log of tf2onnx is shown if `--verbosity` is greater than 0.

  Raises:
    UserError: the model cannot be converted, or the result is wrong.
  """
  if restored.exports_pictures:
    restored = restored.with_pictures(tf.uint8)
  inputs, outputs = restored.inputs, restored.outputs
  strings = [name for name, tensor in inputs.items() if tensor.dtype == tf.string]
  if strings:
    raise UserError('inputs of an ONNX model must be numbers',
                    'strings: ' + ', '.join(strings), 'give --export_format=saved_model')
  with _quiet_converter(restored.settings.run.verbosity):
    try:
      model = _convert_to_onnx(restored.session, inputs, outputs)
      _add_metadata(model, dict(inputs, **outputs), restored.describe_inputs())
    except Exception as error:  # tf2onnx has no exception class of its own.
      raise UserError(_CANNOT_CONVERT.format('tf2onnx'), _last_line(error),
                      _OTHER_FORMATS) from error
  path = os.path.join(folder, ONNX_FILE)
  storage.write_bytes(path, model.SerializeToString())
  _verify(make_examples(restored), lambda: _load_onnx(path), 'ONNX', 'onnxruntime')
  return {'inputs': list(inputs), 'outputs': list(outputs)}


@contextlib.contextmanager
def _quiet_converter(verbosity: int) -> Iterator[None]:
  """Hides the log and the warnings of tf2onnx within the context, unless they are requested."""
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
  """Returns the ONNX model, whose inputs and outputs have these names."""
  from tf2onnx import convert

  with session.graph.as_default():
    # One tensor can be several outputs, or even an input.
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
  """Names the open dimensions and the producer in the ONNX model, and adds metadata."""
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
  """Returns the function of an ONNX model in onnxruntime.

  The model is not optimized: onnxruntime 1.10 cannot optimize some loops, such as those of masked
  LSTM layers, and the optimizations are not part of the exported file.
  """
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4  # Fatal errors only; exceptions report the others.
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
  output_names = [output.name for output in session.get_outputs()]
  input_names = [value.name for value in session.get_inputs()]  # Without unused inputs.
  return lambda inputs: dict(zip(output_names, session.run(
      output_names, {name: inputs[name] for name in input_names})))


def write_tflite(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the TensorFlow Lite model to the folder, and verifies it.

  The outputs of some converted models are wrong, for example if batch norm follows Flatten.

  Raises:
    UserError: the converter does not support an operation of the model, or its result is wrong.
  """
  if _has_feature_columns(restored.keras_model):  # The converter would abort without a reason.
    raise UserError(_CANNOT_CONVERT.format(_TFLITE_CONVERTER), 'it has a layer DenseFeatures',
                    'give --export_format=saved_model')
  if restored.exports_pictures:
    restored = restored.with_pictures(tf.float32)
  examples = make_examples(restored)  # Made now, because the converter sets the batch size to 1.
  converter = tf.lite.TFLiteConverter.from_session(
      restored.session, list(restored.inputs.values()), list(restored.outputs.values()))
  if restored.exports_pictures:
    assert restored.image_shape is not None
    # Without `resize_tensor_input`, images have this size. The converter replaces the floats by
    # uint8; the statistics, mean 0 and deviation 1, keep the values.
    restored.inputs[PICTURES_INPUT].set_shape((1,) + restored.image_shape)
    converter.inference_input_type = tf.uint8
    converter.quantized_input_stats = {restored.inputs[PICTURES_INPUT].op.name: (0., 1.)}
  with keras_config.ignored(), toco_on_path():  # The command imports Keras.
    try:
      converted = converter.convert()
    except Exception as error:  # The message of the error is the output of the converter.
      raise UserError(_CANNOT_CONVERT.format(_TFLITE_CONVERTER), _tflite_failure(error),
                      _OTHER_FORMATS) from error
  path = os.path.join(folder, TFLITE_FILE)
  storage.write_bytes(path, converted)
  _verify(examples, lambda: _load_tflite(path, list(restored.outputs)), 'TFLite',
          'tf.lite.Interpreter')
  return {}


def _load_tflite(path: str, output_names: List[str]) -> ModelFunction:
  """Returns the function of a TensorFlow Lite model, for any number of examples."""
  interpreter = tf.lite.Interpreter(path)
  details = interpreter.get_input_details()
  interpreter.allocate_tensors()

  def run_one(example: List[np.ndarray]) -> List[Any]:
    if details[0]['dtype'] == np.uint8:  # Pictures.
      interpreter.resize_tensor_input(details[0]['index'], (1,) + example[0].shape)
      interpreter.allocate_tensors()
    for detail, array in zip(details, example):
      interpreter.set_tensor(detail['index'], array[np.newaxis])
    interpreter.invoke()
    return [interpreter.get_tensor(detail['index'])
            for detail in interpreter.get_output_details()]

  def run(inputs: Arrays) -> Arrays:
    rows = [run_one(list(example)) for example in zip(*inputs.values())]
    return dict(zip(output_names, map(np.concatenate, zip(*rows))))

  return run


def _has_feature_columns(model: tf.keras.Model) -> bool:
  """Returns whether a model has feature columns, also in a model that is a layer."""
  return any(isinstance(layer, tf.keras.layers.DenseFeatures)
             or (isinstance(layer, tf.keras.Model) and _has_feature_columns(layer))
             for layer in model.layers)


def _tflite_failure(error: Exception) -> str:
  """Returns the unsupported operations, or the last line of the converter's output."""
  match = re.search(r'list of operators for which you will need custom implementations: ([\w, ]+)',
                    str(error))
  return 'unsupported operations: ' + match.group(1).strip() if match else _last_line(error)


def _last_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[-1]


class ComparisonBatch(NamedTuple):
  """Random examples.

  Attributes:
    inputs: the inputs of a model by the names that they have in exports.
    outputs: the outputs of the checkpoint by the names that they have in exports.
    tolerance: the largest difference that is allowed: TOLERANCE or, if a tenth of the largest
      absolute logit exceeds 1, TOLERANCE times this tenth, because rounding errors grow with the
      logits.
  """
  inputs: Arrays
  outputs: Arrays
  tolerance: float


def _verify(batches: Sequence[ComparisonBatch], load: Callable[[], ModelFunction], format_name: str,
            library: str) -> None:
  """Compares the outputs of an exported model with those of the checkpoint.

  Args:
    batches: examples that were made before the export, see make_examples.
    load: loads the exported model.
    format_name: the format, for error messages.
    library: the library with which `load` runs the model, for error messages.

  Raises:
    UserError: the library cannot run the model, or its outputs differ too much.
  """
  try:
    run = load()
    outputs = [run(batch.inputs) for batch in batches]
  except Exception as error:  # The exception classes of the libraries are not public.
    raise UserError('{} cannot run the exported model'.format(library),
                    str(error).strip().partition('\n')[0], _OTHER_FORMATS) from error
  for batch, found in zip(batches, outputs):
    difference = largest_difference(batch.outputs, found)
    if not difference <= batch.tolerance:
      count = len(next(iter(batch.inputs.values())))
      raise UserError(
          'the outputs of the {} model must equal those of the checkpoint to {:.3g}'.format(
              format_name, batch.tolerance),
          'difference {:.1e} with {} example(s) in {}'.format(difference, count, library),
          _OTHER_FORMATS)


def largest_difference(expected: Arrays, found: Arrays) -> float:
  """Returns the largest absolute difference of the outputs.

  If an output has values beyond [-1, 1], its differences are divided by its largest absolute value.

  Args:
    expected: the outputs of the checkpoint, by name.
    found: outputs with the same names.

  Returns:
    The difference; infinity if a value is not a number, a name is missing or a shape is different.
  """
  return max(_difference(np.asarray(array, np.float64), np.asarray(found.get(name)))
             for name, array in expected.items())


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
  """Returns the largest difference of two arrays."""
  if expected.shape != found.shape:
    return float('inf')
  difference = np.abs(expected - found).max(initial=0) / np.abs(expected).max(initial=1)
  return float(difference) if np.isfinite(difference) else float('inf')


def make_examples(restored: RestoredModel,
                  batch_sizes: Sequence[int] = _BATCH_SIZES) -> List[ComparisonBatch]:
  """Makes one batch of random examples for each size. Equal sizes give equal inputs.

  Raises:
    UserError: the model fails with each choice of the random inputs.
  """
  restored.session.run(tf.tables_initializer())  # Vocabularies of feature columns.
  return [_make_batch(restored, size) for size in batch_sizes]


def _make_batch(restored: RestoredModel, batch_size: int) -> ComparisonBatch:
  """Makes random examples with the first limit of integers that the model accepts."""
  logits = [tensor.op.inputs[0] for tensor in restored.outputs.values()
            if tensor.op.type == 'Softmax']
  for limit in _INTEGER_LIMITS:
    inputs = _random_inputs(restored, batch_size, limit)
    try:
      outputs, largest_logits = restored.session.run(
          (restored.outputs, [tf.reduce_max(tf.abs(tensor)) for tensor in logits]),
          {restored.inputs[name]: array for name, array in inputs.items()})
      factor = max([1.] + [logit / 10 for logit in largest_logits])
      return ComparisonBatch(inputs, outputs, TOLERANCE * factor)
    except tf.errors.InvalidArgumentError as error:
      failure = error
  raise UserError('the model must accept random inputs, with which its exports are verified',
                  first_line(failure),
                  'check the inputs in the model, or give another --export_format')


def _random_inputs(restored: RestoredModel, batch_size: int, integer_limit: int) -> Arrays:
  """Returns random inputs by name; random pixel values are scaled for the model.

  Pictures have another size than the images of the model: twice the height, and half the width.
  """
  random = np.random.RandomState(_SEED + batch_size)
  if restored.image_shape is not None:
    height, width, channels = restored.image_shape
    if PICTURES_INPUT in restored.inputs:
      height, width = 2 * height + 1, width // 2 + 1
    pixels = random.randint(0, 256, (batch_size, height, width, channels)).astype(np.uint8)
    if PICTURES_INPUT in restored.inputs:
      return {PICTURES_INPUT: pixels}
    return {TENSOR_INPUT: restored.session.run(restored.preprocess(tf.constant(pixels)))}
  return {name: _random_array(random, tensor.dtype, [batch_size] + [
      size or _UNKNOWN_DIMENSION_SIZE for size in tensor.shape.as_list()[1:]], integer_limit)
          for name, tensor in restored.inputs.items()}


def _random_array(random: np.random.RandomState, dtype: tf.DType, shape: List[int],
                  integer_limit: int) -> Any:
  """Returns random numbers from 0 to 1, integers below the limit, or short strings."""
  if dtype == tf.string:
    return random.randint(0, integer_limit, shape).astype(bytes).astype(object)
  if dtype.is_floating:
    return random.uniform(size=shape).astype(dtype.as_numpy_dtype)
  return random.randint(0, 2 if dtype.is_bool else integer_limit,
                        shape).astype(dtype.as_numpy_dtype)
