#!/usr/bin/env python3
"""Compares the exports of a checkpoint in all formats with the checkpoint, in several libraries.

  .venv/bin/python scripts/compare_exports.py --flagfile=MODEL_DIR/flags.txt
      [--clients=PYTHON[,PYTHON...]] [--pictures=PATTERN] [FLAG...]

Exports the checkpoint to a temporary folder. The libraries of this Python, and of those that
--clients names, load the exports and compute the outputs for the same examples: for images, the
files that --pictures matches, or random ones; random inputs for other models. TensorFlow decodes
the files for exports that take pictures. Prints a table and, as the last line, a JSON object. The
exit code is 0 if all verdicts are ok, 1 if one is not, and 2 if a flag is wrong. Flags of the
program, such as --checkpoint, are allowed.

The Pythons of --clients need NumPy, but not this package. They run this file with --client=JOBS.
"""

import argparse
import glob
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NUM_EXAMPLES, MAX_FILES, TIMEOUT_SECS = 8, 32, 900
TOLERANCE, PICTURES_TOLERANCE = 1e-5, 1e-4  # Resizing is rounded differently.
COLUMNS = ('format', 'client', 'version', 'labels', 'difference', 'verdict')


def main(argv):
  parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--clients', default='')
  parser.add_argument('--pictures')
  parser.add_argument('--client', metavar='JOBS', help=argparse.SUPPRESS)
  own, program_arguments = parser.parse_known_args(argv)
  if own.client:
    with open(own.client, encoding='utf-8') as file:
      print(json.dumps(run_jobs(json.load(file))))
    return 0
  from estimator_train.errors import UserError
  from estimator_train.settings import command_line

  try:
    with tempfile.TemporaryDirectory() as folder:
      settings = command_line.parse(program_arguments + ['--mode=export', '--export_dir=' + folder])
      jobs, rows = export_all(settings, folder, own.pictures)
      rows += run_jobs(jobs)
      for python in filter(None, own.clients.split(',')):
        rows += run_client(python, folder, jobs)
  except UserError as error:
    print('error: {}'.format(error), file=sys.stderr)
    return 2
  is_ok = all(row['verdict'] == 'ok' for row in rows)
  for row in [dict(zip(COLUMNS, COLUMNS)), dict.fromkeys(COLUMNS, '---')] + rows:
    print('| {} |'.format(' | '.join(str(row[name]) for name in COLUMNS)))
  print(json.dumps({'ok': is_ok, 'tolerance': TOLERANCE, 'rows': rows}), flush=True)
  return 0 if is_ok else 1


def run_client(python, folder, jobs):
  """Returns the rows of the libraries of another Python."""
  from estimator_train.errors import UserError, one_line

  path = os.path.join(folder, 'jobs.json')
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(jobs, file)
  try:
    done = subprocess.run(
        [python, '-I', os.path.abspath(__file__), '--client=' + path], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True, timeout=TIMEOUT_SECS)
  except OSError as error:
    raise UserError('--clients must name Pythons', '--clients={} ({})'.format(python, error),
                    'give the path of a Python with NumPy') from error
  if done.returncode:
    raise UserError('a Python of --clients failed', '{} ended with exit code {}: {}'.format(
        python, done.returncode, one_line(done.stderr.strip().rpartition('\n')[2])),
                    'give the path of a Python with NumPy')
  return json.loads(done.stdout.splitlines()[-1])


# What runs in this Python only.


def export_all(settings, folder, pictures):
  """Exports the checkpoint to all formats.

  Returns:
    The jobs: for each export the `format`, the `path`, the `signature` of a SavedModel, and an .npz
    file with the inputs and the outputs of the checkpoint; and the rows of failed exports.
  """
  from estimator_train.errors import UserError
  from estimator_train.exporting import export as exports, restored_model
  from estimator_train.run_dir import RunDir
  from estimator_train.settings.flag_type import all_flags

  with restored_model.open_trained_model(
      settings, RunDir(settings.run.required_model_dir)) as pinned_model, \
      pinned_model.restore() as restored:
    batches, outputs, keras_outputs = make_reference(restored, pictures)
  # A checkpoint of a finished run need not be kept readable for the exports.
  trained_model = pinned_model._replace(checkpoint=pinned_model.checkpoint._replace(
      readable_path=pinned_model.checkpoint.path))
  jobs, rows = [], []
  for name in all_flags()['export_format'].choices:
    export_dir = os.path.join(folder, name)
    os.mkdir(export_dir)
    try:
      version = exports.export_checkpoint(trained_model._replace(settings=settings.evolve(
          export_format=name, export_dir=export_dir).for_mode('export')))
    except UserError as error:
      verdict = 'not exported: {}'.format(error)
      rows.append(dict(dict.fromkeys(COLUMNS), format=name, verdict=verdict))
      continue
    takes_pictures = restored.exports_take_pictures and name != 'h5'
    for signature in version.get('signatures', ('pictures' if takes_pictures else '',)):
      data = os.path.join(folder, '{}-{}.npz'.format(name, signature))
      write_arrays(data, batches[signature], keras_outputs if name == 'h5' else outputs)
      path = version['path'] + ('' if name == 'saved_model' else '/model.' + name)
      jobs.append({'format': name, 'path': path, 'signature': signature, 'data': data,
                   'has_classes': bool(trained_model.spec.labels)})
  return jobs, rows


def make_reference(restored, pictures):
  """Returns batches of inputs by signature ('': tensors), and the outputs of the checkpoint.

  The outputs are those of exports, and those of the Keras model.
  """
  from estimator_train.exporting import verification

  if restored.image_shape is None:
    inputs = verification.make_batch(restored, NUM_EXAMPLES).inputs
  else:
    contents, decoded, inputs = read_pictures(restored, pictures)
  by_signature = {'': [inputs], 'images': [inputs]}
  if restored.exports_take_pictures:
    by_signature['serving_default'] = [{'image_bytes': contents}]
    by_signature['pictures'] = [{'pictures': picture[np.newaxis]} for picture in decoded]
  else:
    by_signature.update(serving_default=[inputs], examples=[{'examples': serialize(inputs)}])
  outputs, keras_outputs = restored.session.run(
      (restored.outputs, restored.keras_model.outputs),
      {restored.inputs[name]: array for name, array in inputs.items()})
  return by_signature, outputs, dict(zip(restored.keras_model.output_names, keras_outputs))


def read_pictures(restored, pattern):
  """Returns the contents of image files, the decoded images, and the inputs of the model."""
  import tensorflow.compat.v1 as tf

  from estimator_train.data import decoding
  from estimator_train.errors import UserError

  if pattern is None:
    random = np.random.RandomState(1).randint(0, 256, (NUM_EXAMPLES,) + restored.image_shape)
    contents = [restored.session.run(tf.image.encode_png(image.astype(np.uint8)))
                for image in random]
  else:
    paths = sorted(glob.glob(pattern, recursive=True))[:MAX_FILES]
    if not paths:
      raise UserError('--pictures must match files', pattern, 'check the pattern')
    contents = [Path(path).read_bytes() for path in paths]
  content = tf.placeholder(tf.string, [])
  decoded = decoding.decode_and_resize(content, restored.image_shape)
  pixels = np.stack([restored.session.run(decoded, {content: item}) for item in contents])
  scaled = restored.session.run(restored.preprocess(tf.constant(pixels)))
  picture = decoding.decode(content, restored.image_shape[2])
  return (np.array(contents, object),
          [restored.session.run(picture, {content: item}) for item in contents],
          {'images': scaled})


def serialize(inputs):
  """Returns tf.train.Examples, the input of the signature `examples`."""
  import tensorflow.compat.v1 as tf

  def make_feature(array):
    if array.dtype.kind == 'O':
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=array.ravel()))
    if array.dtype.kind == 'f':
      return tf.train.Feature(float_list=tf.train.FloatList(value=array.ravel()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=array.ravel()))

  return np.array([tf.train.Example(features=tf.train.Features(feature={
      name: make_feature(array[index]) for name, array in inputs.items()
  })).SerializeToString() for index in range(len(next(iter(inputs.values()))))], object)


# What runs in each Python.


def write_arrays(path, batches, outputs):
  """Writes inputs and outputs; a dot ends each string, as NumPy removes zeros at the end."""
  arrays = {'{}/{}'.format(index, name): np.array(
      [item + b'.' for item in array.ravel()]).reshape(array.shape)
            if array.dtype.kind == 'O' else array
            for index, inputs in enumerate(batches) for name, array in inputs.items()}
  arrays.update({'y/' + name: array for name, array in outputs.items()})
  np.savez(path, **arrays)


def read_arrays(path):
  """Returns the batches of inputs, and the outputs."""
  batches = {}
  with np.load(path) as data:
    for key in data.files:
      index, _, name = key.partition('/')
      array = data[key]
      if array.dtype.kind == 'S':
        array = np.array([item[:-1] for item in array.ravel()], object).reshape(array.shape)
      batches.setdefault(index, {})[name] = array
  outputs = batches.pop('y')
  return list(batches.values()), outputs


def run_jobs(jobs):
  """Returns the rows of the libraries of this Python."""
  rows = []
  for name, module_name, format_, load in LIBRARIES:
    if importlib.util.find_spec(module_name) is None:
      continue
    library = importlib.import_module(module_name)
    version = library.__version__
    major = tuple(map(int, version.split('.')[:2]))
    if (name == 'tf.keras' and major >= (2, 16)) or (name == 'Keras' and major < (3,)):
      continue  # Where tf.keras is Keras 3, Keras is installed, too.
    for job in jobs:
      if job['format'] == format_:
        batches, expected = read_arrays(job['data'])
        tolerance = PICTURES_TOLERANCE if job['signature'] == 'pictures' else TOLERANCE
        labels = difference = None
        try:
          run = load(library, job)
          found = join([run(batch) for batch in batches], expected)
          difference = largest_difference(expected, found)
          if job['has_classes']:
            labels = count_equal_labels(expected, found)
          verdict = 'ok' if difference <= tolerance else 'failed'
        except Exception as error:  # Each library has its own exception classes.
          verdict = 'failed: {!r}'.format(error)
        client = '{}, Python {}'.format(name, platform.python_version())
        rows.append(dict(zip(COLUMNS, ('{} {}'.format(format_, job['signature']).strip(), client,
                                       version, labels, difference, verdict))))
  return rows


def join(outputs, names):
  """Joins the outputs of batches, dicts or lists in the order of the names, to a dict."""
  rows = [found if isinstance(found, dict) else dict(zip(names, found)) for found in outputs]
  return {name: np.concatenate([row[name] for row in rows]) for name in names}


def count_equal_labels(expected, found):
  (array,), (other,) = expected.values(), found.values()
  return '{} of {}'.format((array.argmax(-1) == other.argmax(-1)).sum(), len(array))


def largest_difference(expected, found):
  """Returns the largest difference, divided by the largest value of an output if that exceeds 1."""
  return float(np.max([
      np.abs(array - found[name]).max() / max(1., np.abs(array).max())
      if array.shape == np.shape(found[name]) else np.inf for name, array in expected.items()]))


def load_saved_model(tensorflow, job):
  """Returns a function from the inputs of a signature to its outputs by name."""
  if tensorflow.__version__[0] != '1':
    loaded = tensorflow.saved_model.load(job['path'])  # Owns the variables of the signature.
    signature = loaded.signatures[job['signature']]
    return lambda inputs: {name: tensor.numpy() for name, tensor in signature(**{
        name: tensorflow.constant(array) for name, array in inputs.items()}).items()}
  tf = tensorflow.compat.v1
  session = tf.Session(graph=tf.Graph())
  with session.graph.as_default():
    loaded = tf.saved_model.loader.load(session, ['serve'], job['path'])
  signature = loaded.signature_def[job['signature']]
  return lambda inputs: session.run(
      {name: tensor.name for name, tensor in signature.outputs.items()},
      {signature.inputs[name].name: array for name, array in inputs.items()})


def load_h5(keras, job):
  """Returns a function from inputs to the outputs of a Keras model, in its order."""
  keras.backend.clear_session()
  model = keras.models.load_model(job['path'], compile=False)

  def run(inputs):
    arrays = list(inputs.values())
    outputs = model.predict(arrays if len(arrays) > 1 else arrays[0], verbose=0)
    return outputs if isinstance(outputs, list) else [outputs]

  return run


def load_tflite(interpreter_module, job):
  """Returns a function that runs a TensorFlow Lite model with one example at a time."""
  interpreter = interpreter_module.Interpreter(model_path=job['path'])
  details = interpreter.get_input_details()

  def run_one(example):
    for detail, array in zip(details, example):
      interpreter.resize_tensor_input(detail['index'], (1,) + array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(details, example):
      interpreter.set_tensor(detail['index'], array[np.newaxis])
    interpreter.invoke()
    return [interpreter.get_tensor(detail['index'])
            for detail in interpreter.get_output_details()]

  return lambda inputs: [np.concatenate(arrays) for arrays in zip(
      *map(run_one, zip(*inputs.values())))]


def load_onnx(onnxruntime, job):
  """Returns a function from inputs to the outputs of an ONNX model by name."""
  session = onnxruntime.InferenceSession(job['path'], providers=['CPUExecutionProvider'])
  names = [output.name for output in session.get_outputs()]
  return lambda inputs: dict(zip(names, session.run(
      names, {value.name: inputs[value.name] for value in session.get_inputs()})))


# The name of a library, its module, the format, and the function that loads an export with it.
LIBRARIES = (
    ('TensorFlow', 'tensorflow', 'saved_model', load_saved_model),
    ('TensorFlow', 'tensorflow', 'tflite',
     lambda tensorflow, *given: load_tflite(tensorflow.lite, *given)),
    ('tf.keras', 'tensorflow', 'h5', lambda tensorflow, *given: load_h5(tensorflow.keras, *given)),
    ('tf_keras', 'tf_keras', 'h5', load_h5),
    ('Keras', 'keras', 'h5', load_h5),
    ('LiteRT', 'ai_edge_litert', 'tflite', lambda unused, *given: load_tflite(
        importlib.import_module('ai_edge_litert.interpreter'), *given)),
    ('ONNX Runtime', 'onnxruntime', 'onnx', load_onnx))

if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.exit(main(sys.argv[1:]))
