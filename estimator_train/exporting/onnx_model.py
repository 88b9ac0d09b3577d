"""Writes ONNX models with tf2onnx, and verifies them with onnxruntime.

The inputs and outputs are those of the SavedModel's signatures for tensors, see
trained_model.RestoredModel. The size of the batch is the dimension `N`. tf2onnx, onnx and
onnxruntime belong to the extra `onnx`, so they are imported only here, during an export.
"""

import contextlib
import json
import logging
import os
import warnings
from typing import Any, Dict, Iterator, List, Sequence, Set

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError, one_line
from estimator_train.exporting import verification
from estimator_train.exporting.trained_model import RestoredModel
from estimator_train.system import atomic
from estimator_train.version import __version__

ONNX_FILE = 'model.onnx'
_OPSET = 13  # onnxruntime has supported it since version 1.6 of December 2020.
_CANNOT_CONVERT = 'tf2onnx cannot convert the model'
_LOG = logging.getLogger('estimator_train')

Tensors = Dict[str, tf.Tensor]


def write(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the model to the folder, verifies it, and returns the names of inputs and outputs.

  The log of tf2onnx is shown if `--verbosity` is greater than 0.

  Raises:
    UserError: the model cannot be converted, or the result is wrong.
  """
  inputs, outputs = restored.inputs, restored.outputs
  strings = [name for name, tensor in inputs.items() if tensor.dtype == tf.string]
  if strings:
    raise UserError('inputs of an ONNX model must be numbers',
                    'strings: ' + ', '.join(strings), 'give --export_format=saved_model')
  with _quiet_converter(restored.settings.run.verbosity):
    try:
      model = _convert(restored.session, inputs, outputs)
      content = _describe(model, dict(inputs, **outputs),
                          restored.dataset.labels).SerializeToString()
    except Exception as error:  # tf2onnx has no exception class of its own.
      reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
      raise UserError(_CANNOT_CONVERT, reason, verification.OTHER_FORMATS) from error
  unsupported = _unsupported_operations(model.graph)
  if unsupported:
    raise UserError(_CANNOT_CONVERT, 'unsupported operations: ' + ', '.join(sorted(unsupported)),
                    verification.OTHER_FORMATS)
  path = os.path.join(folder, ONNX_FILE)
  atomic.write_bytes(path, content)
  verification.verify(verification.make_examples(restored), lambda: _load(path), 'ONNX',
                      'onnxruntime')
  return {'inputs': list(inputs), 'outputs': list(outputs)}


def _convert(session: tf.Session, inputs: Tensors, outputs: Tensors) -> Any:
  """Returns the ONNX model, whose inputs and outputs have these names."""
  from tf2onnx import optimizer, tf_loader, tfonnx

  with session.graph.as_default():
    # One tensor can be several outputs, or even an input.
    outputs = {name: tf.identity(tensor) for name, tensor in outputs.items()}
  frozen = tf.graph_util.convert_variables_to_constants(
      session, session.graph_def,
      [tensor.op.name for tensors in (outputs, inputs) for tensor in tensors.values()])
  names_in_graph = [[tensor.name for tensor in tensors.values()] for tensors in (inputs, outputs)]
  with tf.Graph().as_default():  # tf_optimize uses the collections of the default graph.
    optimized = tf_loader.tf_optimize(*names_in_graph, graph_def=frozen)
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(optimized, name='')
    converted = tfonnx.process_tf_graph(
        graph, continue_on_error=True, opset=_OPSET, input_names=names_in_graph[0],
        output_names=names_in_graph[1], tensors_to_rename={
            tensor.name: name for tensors in (inputs, outputs)
            for name, tensor in tensors.items()})
    return optimizer.optimize_graph(converted).make_model('estimator_train')


def _describe(model: Any, tensors: Tensors, class_names: Sequence[str]) -> Any:
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
  if class_names:
    metadata['class_names'] = json.dumps(list(class_names))
  onnx.helper.set_model_props(model, metadata)
  return model


def _unsupported_operations(graph: Any) -> Set[str]:
  """Returns the operations of TensorFlow that tf2onnx left in the graph and its subgraphs."""
  import onnx.defs

  names = set()
  for node in graph.node:
    if not onnx.defs.has(node.op_type, node.domain):
      names.add(node.op_type)
    for attribute in node.attribute:
      for subgraph in [attribute.g] + list(attribute.graphs):
        names |= _unsupported_operations(subgraph)
  return names


def _load(path: str) -> verification.ModelFunction:
  """Returns the function of an ONNX model in onnxruntime.

  If the optimizations of onnxruntime 1.10 fail, as with the loops of masked LSTM layers, they are
  disabled, with a warning. They work in later versions.
  """
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4  # Exceptions contain the errors.
  providers = ['CPUExecutionProvider']
  try:
    session = onnxruntime.InferenceSession(path, options, providers=providers)
  except Exception as error:  # The exception classes of onnxruntime are not public.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    _LOG.warning('onnxruntime %s loads %s only with ORT_DISABLE_ALL: %s', onnxruntime.__version__,
                 ONNX_FILE, one_line(str(error)))
  output_names = [output.name for output in session.get_outputs()]
  input_names = [value.name for value in session.get_inputs()]  # Without unused inputs.

  def run(inputs: verification.Arrays) -> verification.Arrays:
    return dict(zip(output_names, session.run(
        output_names, {name: inputs[name] for name in input_names})))

  return run


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
