"""Exports a checkpoint to all formats, with examples and the outputs of the checkpoint for them."""

import base64
import logging
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.exporting import export as exports, saved_model, trained_model
from estimator_train.exporting.h5_model import H5_FILE
from estimator_train.exporting.onnx_model import ONNX_FILE
from estimator_train.exporting.random_examples import Arrays, RandomExamples
from estimator_train.exporting.tflite import TFLITE_FILE
from estimator_train.exporting.trained_model import TrainedCheckpoint
from estimator_train.settings import Settings, choices, groups
from estimator_train.training.building import make_model_preprocess

_LOG = logging.getLogger('estimator_train')
# The path of a model in its version; '': the folder itself.
_FILES = {'saved_model': '', 'h5': H5_FILE, 'tflite': TFLITE_FILE, 'onnx': ONNX_FILE}
_CHANNELS_OF_PNG = (1, 3)
_CONSTANT = 1e-6  # Smaller differences between outputs are rounding errors.


class Job(NamedTuple):
  """An exported model, with inputs and the expected outputs.

  Attributes:
    format: the value of `--export_format`.
    path: the path of the file; of a SavedModel, of the folder.
    signature: the name of the signature of a SavedModel; '': other formats.
    inputs: the inputs, in the order of the model's inputs.
    expected: the outputs of the checkpoint. Those of h5 and tflite files have the names `0`, `1`
      and so on, in the order of the model's outputs.
  """
  format: str
  path: str
  signature: str
  inputs: Arrays
  expected: Arrays

  @property
  def name(self) -> str:
    return '{} {}'.format(self.format, self.signature).strip()


class _Reference(NamedTuple):
  """Examples and the outputs of the checkpoint.

  Attributes:
    inputs: the inputs by the names in exports.
    outputs: the outputs by the names in exports.
    keras_outputs: the outputs of the Keras model, by index.
    requests: for each signature of a SavedModel, its inputs.
  """
  inputs: Arrays
  outputs: Arrays
  keras_outputs: Arrays
  requests: Dict[str, Arrays]


def make_jobs(settings: Settings, trained: TrainedCheckpoint, folder: str,
              num_examples: int) -> Tuple[List[Job], Dict[str, str]]:
  """Exports the checkpoint to all formats.

  Args:
    settings: the settings of the run, for the mode `export`.
    trained: the checkpoint.
    folder: the folder to export to.
    num_examples: the number of examples.

  Returns:
    The exported models, and the reasons why formats could not be exported.
  """
  reference = _make_reference(settings, trained, num_examples)
  if num_examples > 1 and all(np.ptp(array, axis=0).max() < _CONSTANT
                              for array in reference.outputs.values() if array.size):
    _LOG.warning('the outputs of the checkpoint are the same for all examples, so that the '
                 'comparison cannot find differences in most layers')
  jobs, failures = [], {}
  for export_format in choices.EXPORT_FORMATS:
    _LOG.info('exporting %s', export_format)
    export_dir = os.path.join(folder, export_format)
    os.makedirs(export_dir)
    try:
      version = exports.export_checkpoint(
          settings.evolve(export_format=export_format, export_dir=export_dir).for_mode('export'),
          trained.dataset, trained.checkpoint)
    except UserError as error:
      failures[export_format] = str(error)
      continue
    path = os.path.join(version['path'], _FILES[export_format])
    jobs.extend(_jobs_of_format(export_format, path, version.get('signatures', ()), reference))
  return jobs, failures


def _jobs_of_format(export_format: str, path: str, signatures: Sequence[str],
                    reference: _Reference) -> List[Job]:
  """Returns the jobs of an exported model; a SavedModel has one for each signature."""
  if export_format == 'saved_model':
    return [Job(export_format, path, signature, reference.requests[signature], reference.outputs)
            for signature in signatures]
  expected = {'onnx': reference.outputs, 'h5': reference.keras_outputs,
              'tflite': _numbered(reference.outputs.values())}[export_format]
  return [Job(export_format, path, '', reference.inputs, expected)]


def _numbered(arrays: Iterable[np.ndarray]) -> Arrays:
  """Returns the arrays under the names `0`, `1` and so on."""
  return {str(index): array for index, array in enumerate(arrays)}


def _make_reference(settings: Settings, trained: TrainedCheckpoint,
                    num_examples: int) -> _Reference:
  """Restores the checkpoint, and computes its outputs for random examples."""
  with trained_model.restored_model(settings, trained.dataset, trained.checkpoint) as (
      model, session):
    examples = RandomExamples(model, session, trained.dataset, make_model_preprocess(
        model, settings[groups.Model], trained.dataset))
    inputs, outputs = examples.make(num_examples)
    keras_outputs = session.run(model.outputs, dict(zip(model.inputs, inputs.values())))
    if trained.dataset.image_shape is None:
      requests = {saved_model.DEFAULT_SIGNATURE: inputs,
                  saved_model.EXAMPLES_SIGNATURE: _serialized_examples(inputs)}
    else:
      requests = {saved_model.IMAGES_SIGNATURE: inputs}
      if model.input_shape[-1] in _CHANNELS_OF_PNG:
        image = tf.placeholder(tf.uint8, [None, None, None])
        encode = session.make_callable(tf.image.encode_png(image), [image])
        requests[saved_model.DEFAULT_SIGNATURE] = {'image_bytes': np.array(
            [encode(pixels) for pixels in examples.make_pixels(num_examples)], object)}
  return _Reference(inputs, outputs, _numbered(keras_outputs), requests)


def _serialized_examples(inputs: Arrays) -> Arrays:
  """Returns the input of the signature `examples`."""
  def make_feature(array: np.ndarray) -> tf.train.Feature:
    values = array.ravel().tolist()
    if array.dtype.kind == 'O':
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if array.dtype.kind == 'f':
      return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

  count = len(next(iter(inputs.values())))
  return {'examples': np.array([tf.train.Example(features=tf.train.Features(feature={
      name: make_feature(array[index:index + 1]) for name, array in inputs.items()
  })).SerializeToString() for index in range(count)], object)}


def encode_strings(array: np.ndarray) -> Any:
  """Returns nested lists of base64 of an array of bytes objects, for JSON."""
  def encode(value: Any) -> Any:
    return ([encode(item) for item in value] if isinstance(value, list)
            else base64.b64encode(value).decode())

  return encode(array.tolist())
