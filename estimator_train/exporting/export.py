"""Exports a checkpoint in the format of `--export_format`, as a new version in `--export_dir`.

Versions are numbered folders, as TensorFlow Serving expects. The number is the time in seconds
since 1970, so that Serving loads the latest export, no matter which run and step it comes from.
While a version is written, its folder has a temporary name, which Serving ignores because it is not
a number. If an export is killed, the next export removes the temporary folder (see
system/temporary_files.py).
"""

import errno
import logging
import os
import shlex
import sys
import time
from typing import Any, Callable, Dict, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.data.source import Source
from estimator_train.errors import UserError
from estimator_train.exporting import h5_model, onnx_and_tflite, saved_model
from estimator_train.exporting.restored_model import RestoredModel, TrainedModel
from estimator_train.run_dir import LABELS_FILE, make_folder
from estimator_train.settings import PREPROCESSING_FILE
from estimator_train.settings.flags import ExportFlags
from estimator_train.system import storage, temporary_files, watchdog

_LOG = logging.getLogger('estimator_train')
CHECKSUMS_FILE = 'SHA256SUMS'
# For each format, the function that writes a restored model to a folder. It returns lists of names
# that become part of the result of export_checkpoint.
_FORMATS: Dict[str, Callable[[str, RestoredModel], Dict[str, List[str]]]] = {
    'saved_model': saved_model.write_saved_model, 'h5': h5_model.write_h5,
    'tflite': onnx_and_tflite.write_tflite, 'onnx': onnx_and_tflite.write_onnx}

# For each format but SavedModel, the file, and Python code that loads it.
_READING_CODE = {
    'h5': (h5_model.H5_FILE, 'import tensorflow as tf; tf.keras.models.load_model({}).summary()'),
    'tflite': (onnx_and_tflite.TFLITE_FILE, 'import tensorflow as tf; '
               'print(tf.lite.Interpreter({}).get_input_details())'),
    'onnx': (onnx_and_tflite.ONNX_FILE, 'import onnxruntime; '
             'print(*onnxruntime.InferenceSession({}).get_inputs())')}


def make_export_dir(flags: ExportFlags) -> None:
  """Makes the folder `--export_dir` if it is given. Called before the training to find errors."""
  if flags.export_dir:
    make_folder(flags.export_dir, 'export_dir')


def export_checkpoint(trained_model: TrainedModel,
                      source: Optional[Source] = None) -> Dict[str, Any]:
  """Exports a checkpoint as a new version in `--export_dir`.

  Args:
    trained_model: its settings give `--export_dir`.
    source: examples for the verification of a TensorFlow Lite or ONNX model, in addition to random
      examples; None to use only random examples.

  Returns:
    A dict with the `path` of the version, the `format`, the `checkpoint` and its `global_step`. For
    a SavedModel, also the `signatures`; for ONNX, the names of the `inputs` and `outputs`.

  Raises:
    UserError: the model cannot be exported to this format, or the folder cannot be written to.
  """
  settings, spec = trained_model.settings, trained_model.spec
  export_format, export_dir = settings.export.export_format, settings.export.export_dir
  assert export_dir is not None
  if settings.export.export_input == 'pictures':
    spec.require_images('--export_input=pictures')
  names: Dict[str, List[str]] = {}

  def write_files(folder: str) -> None:
    is_verified = export_format in ('tflite', 'onnx')
    with trained_model.restore(source if is_verified else None) as restored:
      names.update(_FORMATS[export_format](folder, restored))
      storage.write_json(os.path.join(folder, PREPROCESSING_FILE),
                         restored.describe_inputs())
    if spec.labels and export_format != 'saved_model':  # A SavedModel has them as an asset.
      saved_model.write_class_names(os.path.join(folder, LABELS_FILE), spec.labels)

  with watchdog.end_if_hanging(
      'export', settings.cluster.step_timeout_secs, watchdog.measure_work):
    path = write_version(export_dir, write_files)
  checkpoint = trained_model.checkpoint
  return dict({'path': path, 'format': export_format}, **names, checkpoint=checkpoint.path,
              global_step=checkpoint.global_step)


def make_command_to_read(export: Dict[str, Any]) -> Optional[str]:
  """Returns a command that loads an export, and prints its inputs and outputs.

  Args:
    export: the result of export_checkpoint.

  Returns:
    None for a Keras model that TensorFlow 1.15 cannot load without arguments. If so, the function
    logs a warning.
  """
  path, python = export['path'], sys.executable
  if export['format'] == 'saved_model':
    arguments = [os.path.join(os.path.dirname(python), 'saved_model_cli'), 'show', '--dir', path,
                 '--all']
  else:
    file_name, code = _READING_CODE[export['format']]
    file = os.path.join(path, file_name)
    error = h5_model.find_loading_error(file) if export['format'] == 'h5' else None
    if error is not None:
      _LOG.warning('TensorFlow 1.15 cannot load %s without custom_objects (%s): '
                   '--export_format=saved_model makes a model that needs none', file, error)
      return None
    arguments = [python, '-c', code.format(repr(file))]
  return ' '.join(map(shlex.quote, arguments))


def write_version(export_dir: str, write_files: Callable[[str], None]) -> str:
  """Writes the next version to a temporary folder, and renames the folder when it is complete.

  Args:
    export_dir: the folder of all versions, which must exist.
    write_files: writes the files of the version to the folder with the given path.

  Returns:
    The path of the version.

  Raises:
    UserError: the version cannot be written.
  """
  try:
    with temporary_files.make_folder(os.path.join(export_dir, 'version')) as temporary_dir:
      write_files(temporary_dir)
      _flush_and_write_checksums(temporary_dir)
      return _rename_to_next_version(temporary_dir, export_dir)
  except (OSError, tf.errors.ResourceExhaustedError) as error:
    # TensorFlow raises ResourceExhaustedError if the disk is full.
    raise UserError('--export_dir cannot be written to', '{} ({})'.format(export_dir, error),
                    'give a folder that this user can write to, on a disk that has room'
                    ) from error


def _flush_and_write_checksums(folder: str) -> None:
  """Flushes the files to the disk, and writes their checksums in the format of `sha256sum`."""
  lines = []
  for parent, _, names in os.walk(folder):
    for name in names:
      path = os.path.join(parent, name)
      with open(path, 'rb') as file:
        os.fsync(file.fileno())
      lines.append('{}  {}\n'.format(storage.digest_file(path, 'sha256'),
                                     os.path.relpath(path, folder)))
  storage.write_text(os.path.join(folder, CHECKSUMS_FILE), ''.join(sorted(lines)))


def _rename_to_next_version(temporary_dir: str, export_dir: str) -> str:
  """Renames the folder to the next free version number. Returns the new path."""
  versions = [int(name) for name in os.listdir(export_dir) if name.isdigit()]
  version = max([int(time.time())] + [number + 1 for number in versions])
  while True:
    path = os.path.join(export_dir, str(version))
    try:
      os.rename(temporary_dir, path)
      return path
    except OSError as error:
      if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
        raise
      version += 1
