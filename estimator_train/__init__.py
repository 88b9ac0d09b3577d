"""Trains Keras models through TensorFlow 1.15's Estimators, on one to many devices.

From Python:

    import estimator_train

    settings = estimator_train.Settings(model_dir='runs/mine', train_steps=100)
    result = estimator_train.train(settings)

TensorFlow is imported by the first call. Nothing here parses a command line or ends the process:
what goes wrong is raised, UserError when something that was given is wrong. The log goes to
`logging.getLogger('estimator_train')`, which has no handler of ours.
"""

import os
from typing import Any, Dict

from estimator_train.datasets.description import ArraySplit, DataSet, IdxSplit, ImageSplit
from estimator_train.errors import StoppedBySignal, TrainingFailed, UserError
from estimator_train.settings import Settings, groups

__all__ = ['ArraySplit', 'DataSet', 'IdxSplit', 'ImageSplit', 'Settings', 'StoppedBySignal',
           'TrainingFailed', 'UserError', 'convert', 'evaluate', 'train']

__version__ = '0.1.0'


def train(settings: Settings) -> Dict[str, Any]:
  """Trains, and unless `mode='train'` evaluates, as the program does by the flags of these names.

  A run that is in `model_dir` already goes on. SIGINT, which is what a notebook sends to interrupt
  a cell, and SIGTERM end the run after the running step, with a checkpoint; from another thread
  than the main one signals are left alone.

  Args:
    settings: `model` and `dataset` may be functions of your own.

  Returns:
    The result, the object of the last line that the program prints: `accuracy`, `global_step`,
    `examples_per_sec` and others.

  Raises:
    UserError: something that was given is wrong.
    TrainingFailed: the loss was not finite.
    StoppedBySignal: a signal ended the run.
  """
  if not settings.trains:
    raise UserError('train() takes settings that train', 'mode={!r}'.format(settings.mode),
                    'give mode=\'train_and_evaluate\' or \'train\', or call evaluate()')
  return _run(settings.for_mode(settings.mode))


def evaluate(settings: Settings) -> Dict[str, Any]:
  """Evaluates the latest checkpoint in `model_dir`; the settings may be those that trained it.

  Returns:
    The result: `accuracy`, `average_loss`, `examples`, `per_class` and others.

  Raises:
    UserError: something that was given is wrong.
  """
  return _run(settings.for_mode('evaluate'))


def convert(model: Any, model_dir: str, distribution_strategy: str = 'mirrored',
            num_gpus: int = -1, num_cpu_replicas: int = 0, seed: int = 1) -> Any:
  """Converts a compiled Keras model to an Estimator, for an `input_fn` of your own.

  As `tf.keras.estimator.model_to_estimator` does, but N replicas train like one by any optimizer,
  all of the model's weights arrive, those of frozen layers among them, and checkpoints go on on
  another number of replicas. Where the loss is a categorical cross-entropy, evaluations tell
  `accuracy`, `average_loss` per example, `examples` and `confusion_matrix`.

  Args:
    model: a compiled tf.keras.Model, Sequential or of inputs and outputs, with the weights to begin
      with. They count until `model_dir` has a checkpoint, which stands from then on.
    model_dir: the folder of the Estimator's checkpoints.
    distribution_strategy: `off`, `one_device`, `mirrored` or `central_storage`.
    num_gpus: GPUs to use, a replica each; -1: all there are.
    num_cpu_replicas: replicas on logical CPU devices, where there is no GPU.
    seed: of what is random in a step, such as dropout.

  Returns:
    A tf.estimator.Estimator. The batches of its `input_fn` are per replica; it evaluates on one
    device.

  Raises:
    UserError: the model cannot be converted, or `model_dir` holds another one's checkpoint.
  """
  from estimator_train.process import guest

  # How long to train is for the Estimator's caller to say.
  settings = Settings(mode='train', model_dir=model_dir, train_steps=1,
                      model=getattr(model, 'name', 'none'), num_gpus=num_gpus, seed=seed,
                      num_cpu_replicas=num_cpu_replicas,
                      distribution_strategy=distribution_strategy)
  _find_worker(settings[groups.Devices])
  with guest.process_left_as_it_was(settings.verbosity):
    from estimator_train.training import convert_own
    return convert_own.convert(model, settings)


def _run(settings: Settings) -> Dict[str, Any]:
  from estimator_train import modes
  from estimator_train.process import guest

  worker = _find_worker(settings[groups.Devices])
  with guest.process_left_as_it_was(settings.verbosity):
    # What ends the process after so long would end the user's.
    return modes.run(settings.evolve(step_timeout_secs=0), worker)


def _find_worker(settings: groups.Devices) -> Any:
  """Returns which process of a run this one is.

  Raises:
    UserError: it is a task of a cluster, whose process ends when another one is lost.
  """
  from estimator_train.cluster import tf_config, worker

  found = worker.find(os.environ, settings.distribution_strategy)
  if found.cluster is not None and len(found.cluster.members) > 1:
    raise UserError('tasks of a cluster are processes of their own',
                    'TF_CONFIG has ' + tf_config.counts(found.cluster),
                    'run python -m estimator_train, or unset TF_CONFIG')
  return found
