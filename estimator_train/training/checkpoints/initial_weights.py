"""The weights that a training begins with: read from a file, and never those of another run."""

import hashlib
import logging
import os
from typing import List, Optional, Tuple, Union

import h5py
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.models import registry as models
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups
from estimator_train.tf_patches import model_to_estimator
from estimator_train.training.checkpoints import save_hook

_LOG = logging.getLogger('estimator_train')
_FINGERPRINT_FILE = 'fingerprint.txt'


def load(model: tf.keras.Model, settings: groups.Model, image_shape: Tuple[int, int, int]) -> None:
  """Sets the model's weights as `--weights` says, in Keras's own session.

  Args:
    model: one of the same layers; an Estimator's checkpoint goes by the variables' names. Of
      ImageNet weights, and of a file without the last layer's, the last layer stays random.
    settings: of this run.
    image_shape: (height, width, channels) of the data.

  Raises:
    UserError: there is no such file, or it holds other weights.
  """
  if settings.weights == 'imagenet':
    values = models.imagenet_weights(settings.model, image_shape)
    model.set_weights(values + model.get_weights()[len(values):])
    return
  path = settings.weights
  checkpoint = tf.train.latest_checkpoint(path) if os.path.isdir(path) else path
  try:
    if os.path.isfile(path):
      _load_h5(model, path)
    elif checkpoint and tf.train.checkpoint_exists(checkpoint):
      model.set_weights([tf.train.load_variable(checkpoint, weight.op.name)
                         for weight in model.weights])
    else:
      raise UserError('there are no weights', '--weights=' + path,
                      'give an .h5 file, a checkpoint, or the --model_dir of a run')
  except (ValueError, KeyError, OSError, tf.errors.OpError) as error:
    raise UserError('the weights do not fit the model',
                    '--weights={} ({})'.format(path, error),
                    'give weights of this --model') from error


def _load_h5(model: tf.keras.Model, path: str) -> None:
  """Loads a file of all layers' weights, or of all but the last layer's."""
  with h5py.File(path, 'r') as file:
    if _leads_elsewhere('', file) or file.visititems(_leads_elsewhere):
      raise UserError('a file of weights leads to other files', '--weights=' + path,
                      'give one that holds all of them; check where this one comes from')
    group = file.get('model_weights', file)
    stored = [name.decode('utf-8') for name in group.attrs.get('layer_names', ())
              if len(group[name].attrs['weight_names'])]
  own = [layer.name for layer in model.layers if layer.weights]
  without_last = bool(stored) and stored == own[:-1]
  if without_last:
    _LOG.info('%s has no weights of the layer %s, which begins random', path, own[-1])
  model.load_weights(path, by_name=without_last)


def _leads_elsewhere(unused_name: str, item: Union[h5py.Group, h5py.Dataset]) -> Optional[bool]:
  """Returns True where HDF5 would read another file, any of the user's, into the weights."""
  if isinstance(item, h5py.Dataset):
    return bool(item.external or item.is_virtual) or None  # Other than None ends the visit.
  return any(isinstance(item.get(name, getlink=True), h5py.ExternalLink) for name in item) or None


def fingerprint(settings: groups.Model, seed: int) -> str:
  """Returns what tells these initial weights from others: the model, and the seed or the file."""
  if settings.weights == 'none':
    return '--model={} --seed={}'.format(settings.model, seed)
  if settings.weights == 'imagenet':
    return '--model={} --weights=imagenet --seed={}'.format(settings.model, seed)
  digest = hashlib.md5()
  for path in _files_of(settings.weights):
    with open(path, 'rb') as file:
      for chunk in iter(lambda: file.read(1 << 20), b''):
        digest.update(chunk)
  return '--model={} --weights md5 {}'.format(settings.model, digest.hexdigest())


def clear_stale(run_dir: RunDir, settings: groups.Model, seed: int) -> None:
  """Makes sure that model_to_estimator will write these initial weights, not find others.

  It takes what lies in `model_dir/keras` without a look. Before the first checkpoint that can only
  be left over, and is removed; after it the checkpoint stands, and other initial weights than
  those that the run began with are reported.
  """
  folder = os.path.dirname(model_to_estimator.initial_weights_path(run_dir.path))
  path, step = save_hook.latest(run_dir.path)
  if path is None:
    model_to_estimator.clear_initial_weights(run_dir.path)
    return
  before, now = _read_fingerprint(folder), fingerprint(settings, seed)
  if before is not None and before != now:
    _LOG.warning('going on from the checkpoint of step %d, which began with %s; the initial '
                 'weights of %s are not used', step, before, now)


def record(model: Optional[tf.keras.Model], run_dir: RunDir, settings: groups.Model,
           seed: int) -> None:
  """Checks what model_to_estimator has written before the first checkpoint, and notes whose it is.

  Args:
    model: the one whose weights were loaded; None where they are random.
    run_dir: of this run.
    settings: of this run.
    seed: of random weights.

  Raises:
    RuntimeError: what was written are not the model's weights.
  """
  if save_hook.latest(run_dir.path)[0] is not None:
    return
  written = model_to_estimator.initial_weights_path(run_dir.path)
  if model is not None:
    for weight, value in zip(model.weights, model.get_weights()):
      if not np.array_equal(tf.train.load_variable(written, weight.op.name), value):
        raise RuntimeError('{} has not arrived in {}'.format(weight.op.name, written))
  atomic.write_text(os.path.join(os.path.dirname(written), _FINGERPRINT_FILE),
                    fingerprint(settings, seed) + '\n')


def _read_fingerprint(folder: str) -> Optional[str]:
  try:
    with open(os.path.join(folder, _FINGERPRINT_FILE), encoding='utf-8') as file:
      return file.read().strip()
  except OSError:
    return None


def _files_of(path: str) -> List[str]:
  """Returns the files of the weights: the .h5 file, or those that make a checkpoint."""
  if os.path.isfile(path):
    return [path]
  prefix = tf.train.latest_checkpoint(path) if os.path.isdir(path) else path
  assert prefix is not None
  return sorted(name for name in tf.gfile.Glob(prefix + '.*') if not name.endswith('.meta'))
