"""Rewrites the configurations in an .h5 file of TensorFlow 1.15 so that Keras 3 loads it, too.

An .h5 file contains the weights, the configuration of the model (`model_config`), which
portable_layers.py rewrites, and the configuration of its compilation (`training_config`). Both are
JSON. What this module does not know stays as it is, and a file that Keras 3 cannot load, or with
which it would compute something else, stays unchanged. The weights always stay unchanged.
tests/exporting/test_portable_h5.py loads files in TensorFlow 1.15, tf_keras and Keras 3.
"""

import copy
import json
from typing import Any, Dict, Optional

import h5py

from estimator_train.exporting import portable_layers

Config = Dict[str, Any]

# Keras 3 finds a loss in a file only by this name, which is another name of the same function.
_FULL_LOSS_NAMES = {
    'mse': 'mean_squared_error', 'mae': 'mean_absolute_error',
    'mape': 'mean_absolute_percentage_error', 'msle': 'mean_squared_logarithmic_error',
    'kld': 'KLDivergence', 'kullback_leibler_divergence': 'KLDivergence', 'logcosh': 'LogCosh',
    'huber_loss': 'Huber', 'cosine_proximity': 'cosine_similarity'}


def make_portable(path: str) -> Optional[str]:
  """Rewrites an .h5 file of TensorFlow 1.15 in place so that Keras 3 loads it, too.

  Nothing is written before all changes are known. The caller makes the file visible under its final
  name afterwards.

  Args:
    path: the path of the file.

  Returns:
    None if the file was rewritten; otherwise the reason why Keras 3 cannot load the model. The file
    is unchanged then.
  """
  with h5py.File(path, 'r') as file:
    configs = {name: json.loads(_as_text(file.attrs[name]))
               for name in ('model_config', 'training_config') if name in file.attrs}
  try:
    configs['model_config'] = portable_layers.portable_model(configs['model_config'])
  except portable_layers.NotPortable as error:
    return str(error)
  except (AttributeError, IndexError, KeyError, TypeError) as error:
    # A class of the user can have the name of Keras's own class and another configuration.
    return 'the configuration of a layer is unknown ({!r})'.format(error)
  if 'training_config' in configs:
    configs['training_config'] = portable_training(configs['training_config'])
  with h5py.File(path, 'r+') as file:
    for name, config in configs.items():
      file.attrs[name] = json.dumps(config).encode('utf-8')
  return None


def _as_text(value: Any) -> str:
  """Returns the text of an attribute, which h5py returns as bytes or as text."""
  return value.decode('utf-8') if isinstance(value, bytes) else value


def portable_training(config: Config) -> Config:
  """Returns the configuration of the compilation, with changes that only concern Keras 3."""
  config = copy.deepcopy(config)
  for loss in portable_layers.dicts_in(config.get('loss')):
    options = loss.get('config')
    if isinstance(options, dict) and options.get('reduction') == 'auto':
      options['reduction'] = 'sum_over_batch_size'
  optimizer = config.get('optimizer_config', {}).get('config', {})
  if optimizer.get('decay') == 0:
    del optimizer['decay']  # The default value, about which Keras 3 warns.
  return config


def full_loss_names(loss: Any) -> Any:
  """Returns a loss, or several in a list or dict, with names instead of abbreviations."""
  if isinstance(loss, (list, tuple)):
    return [full_loss_names(item) for item in loss]
  if isinstance(loss, dict):
    return {name: full_loss_names(item) for name, item in loss.items()}
  return _FULL_LOSS_NAMES.get(loss.lower(), loss) if isinstance(loss, str) else loss
