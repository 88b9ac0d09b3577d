"""Computes the outputs of exported models with the libraries of any Python 3.6 or later.

  PYTHON parity_client.py                          prints which libraries this Python has, as JSON
  PYTHON parity_client.py LIBRARY JOBS RESULTS     computes with one of them

This script imports only NumPy and the library, because its Python need not have this package. JOBS
is a JSON list of objects: the `name` of the job, the `format` and the `path` of the file or folder,
the `signature` of a SavedModel, `names`, the inputs in the order of the model, `inputs`, an .npz
file of those that are numbers, `strings`, an object of those that are strings, as nested lists of
base64, and `outputs`, the .npz file to write. RESULTS gets a JSON object of the `version`, and the
error (null: none) of each job.
"""

import base64
import importlib
import importlib.util
import json
import os
import platform
import sys
from typing import Any, Callable, Dict, List

import numpy as np

# A key is the module of a library. Its value are the formats that it may load.
LIBRARIES = {
  'tensorflow': ('saved_model', 'h5', 'tflite'),  # h5: only before version 2.16.
  'tf_keras': ('h5',),
  'keras': ('h5',),  # From version 3 on.
  'onnxruntime': ('onnx',),
  'ai_edge_litert': ('tflite',),
}
# The error of a job that another library of this table does.
NOT_FOR_THIS_VERSION = 'not for this version'

Arrays = Dict[str, Any]


def main(arguments: List[str]) -> None:
  """Runs a command of this script, see the docstring of the module."""
  if not sys.flags.isolated:
    sys.path.pop(0)  # The folder of this script, whose modules could hide those of libraries.
  if not arguments:
    print(json.dumps({'python': platform.python_version(), 'libraries': [
        name for name in LIBRARIES if importlib.util.find_spec(name)]}))
    return
  library, jobs_path, results_path = arguments
  os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  module = importlib.import_module(library)
  results = {'version': module.__version__, 'errors': {}}
  with open(jobs_path, encoding='utf-8') as file:
    jobs = json.load(file)
  for job in jobs:
    try:
      with np.load(job['inputs'], allow_pickle=False) as stored:
        inputs = {name: _decode_strings(job['strings'][name]) if name in job['strings']
                  else stored[name] for name in job['names']}
      outputs = _RUN[job['format']](module, job, inputs)
      np.savez(job['outputs'], **{name: array for name, array in outputs.items()
                                  if np.asarray(array).dtype.kind in 'biuf'})
      results['errors'][job['name']] = None
    except Exception as error:  # Each library has its own exception classes.
      results['errors'][job['name']] = (NOT_FOR_THIS_VERSION if isinstance(error, NotForThisVersion)
                                        else _describe(error))
    with open(results_path, 'w', encoding='utf-8') as file:
      json.dump(results, file)  # After each job, because the library may end the process.


class NotForThisVersion(Exception):
  """This version of the library does not load the format, but another library here does."""


def _describe(error: Exception) -> str:
  """Returns the class and the first line of an error, or the last line if it has the reason."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  reason = lines[-1:] if lines and lines[-1].startswith('Exception encountered') else lines[:1]
  return ': '.join([type(error).__name__] + reason)


def _decode_strings(values: Any) -> Any:
  """Decodes nested lists of base64 to an array of bytes objects."""
  def decode(value: Any) -> Any:
    return [decode(item) for item in value] if isinstance(value, list) else base64.b64decode(value)

  return np.array(decode(values), object)


def _run_saved_model(tensorflow: Any, job: Dict[str, Any], inputs: Arrays) -> Arrays:
  """Returns the outputs of a signature by name."""
  if _version(tensorflow) >= (2,):
    signature = tensorflow.saved_model.load(job['path']).signatures[job['signature']]
    outputs = signature(**{name: tensorflow.constant(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}
  with tensorflow.Graph().as_default(), tensorflow.compat.v1.Session() as session:
    loaded = tensorflow.compat.v1.saved_model.loader.load(session, ['serve'], job['path'])
    signature = loaded.signature_def[job['signature']]
    return dict(session.run(
        {name: tensor.name for name, tensor in signature.outputs.items()},
        {signature.inputs[name].name: array for name, array in inputs.items()}))


def _run_h5(library: Any, job: Dict[str, Any], inputs: Arrays) -> Arrays:
  """Returns the outputs of a Keras model under the names `0`, `1`, ... in the model's order."""
  keras = library
  if library.__name__ == 'tensorflow':
    if _version(library) >= (2, 16):
      raise NotForThisVersion
    keras = library.keras
  elif library.__name__ == 'keras' and _version(library) < (3,):
    raise NotForThisVersion
  model = keras.models.load_model(job['path'], compile=False)
  arrays = list(inputs.values())
  outputs = model.predict(arrays if len(arrays) > 1 else arrays[0], verbose=0)
  return _numbered(outputs if isinstance(outputs, list) else [outputs])


def _run_tflite(library: Any, job: Dict[str, Any], inputs: Arrays) -> Arrays:
  """Returns the outputs of a TensorFlow Lite model, which takes one example at a time."""
  if library.__name__ == 'tensorflow':
    interpreter = library.lite.Interpreter(model_path=job['path'])
  else:
    interpreter = importlib.import_module('ai_edge_litert.interpreter').Interpreter(
        model_path=job['path'])
  interpreter.allocate_tensors()
  rows = []
  for index in range(len(next(iter(inputs.values())))):
    for detail, array in zip(interpreter.get_input_details(), inputs.values()):
      interpreter.set_tensor(detail['index'], array[index:index + 1])
    interpreter.invoke()
    rows.append([interpreter.get_tensor(detail['index']).copy()
                 for detail in interpreter.get_output_details()])
  return _numbered([np.concatenate(arrays) for arrays in zip(*rows)])


def _run_onnx(onnxruntime: Any, job: Dict[str, Any], inputs: Arrays) -> Arrays:
  """Returns the outputs of an ONNX model by name."""
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  session = onnxruntime.InferenceSession(job['path'], options, providers=['CPUExecutionProvider'])
  names = [output.name for output in session.get_outputs()]
  used = {value.name for value in session.get_inputs()}
  return dict(zip(names, session.run(names, {
      name: array for name, array in inputs.items() if name in used})))


def _version(module: Any) -> Any:
  """Returns the major and the minor version of a library."""
  return tuple(int(part) for part in module.__version__.split('.')[:2])


def _numbered(outputs: Any) -> Arrays:
  """Returns the outputs by their index in the model."""
  return {str(index): array for index, array in enumerate(outputs)}


_RUN: Dict[str, Callable[[Any, Dict[str, Any], Arrays], Arrays]] = {
  'saved_model': _run_saved_model, 'h5': _run_h5, 'tflite': _run_tflite, 'onnx': _run_onnx}

if __name__ == '__main__':
  main(sys.argv[1:])
