"""Trains Keras models as TensorFlow 1.15 Estimators, on one device or many.

Example:

    import estimator_train

    settings = estimator_train.Settings(model_dir='runs/mine', train_steps=100)
    result = estimator_train.train(settings)

The first call of a function imports TensorFlow. The functions neither parse a command line nor end
the process; they raise exceptions, such as UserError if an argument is invalid. They log to
`logging.getLogger('estimator_train')`, and add no handler to it.
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
  """Trains a model and, unless `mode='train'`, evaluates it.

  If `model_dir` contains an earlier run, training resumes from its last checkpoint. SIGINT (which a
  notebook sends to interrupt a cell) and SIGTERM end the run after the current step and save a
  checkpoint; they are handled only if train() is called in the main thread.

  Args:
    settings: the values of the program's flags; `model` and `dataset` may be functions.

  Returns:
    The result that the program prints as JSON in its last line, as a dict: `accuracy`,
    `global_step`, `examples_per_sec` and others.

  Raises:
    UserError: a setting, the data or the model is invalid.
    TrainingFailed: training cannot continue, for example because the loss is not finite.
    StoppedBySignal: a signal ended the run.
  """
  if not settings.trains:
    raise UserError('train() requires a mode that trains', 'mode={!r}'.format(settings.mode),
                    'give mode=\'train_and_evaluate\' or \'train\', or call evaluate()')
  return _run(settings.for_mode(settings.mode))


def evaluate(settings: Settings) -> Dict[str, Any]:
  """Evaluates a checkpoint in `model_dir` on the test examples.

  Args:
    settings: the settings of the training run, with any `mode`. `checkpoint` chooses the
      checkpoint, by default the latest one.

  Returns:
    A dict with `accuracy`, `average_loss`, `examples` and others.

  Raises:
    UserError: a setting, the data or the checkpoint is invalid.
  """
  return _run(settings.for_mode('evaluate'))


def convert(model: Any, model_dir: str, distribution_strategy: str = 'mirrored',
            num_gpus: int = -1, num_cpu_replicas: int = 0, seed: int = 1) -> Any:
  """Converts a compiled Keras model to an Estimator that can be used with any `input_fn`.

  It differs from `tf.keras.estimator.model_to_estimator` as follows: with any optimizer, N replicas
  reach the same weights as one; training starts from all weights of the model, including those of
  frozen layers; and training can resume from a checkpoint with another number of replicas. If the
  loss is a categorical cross-entropy, evaluations report `accuracy`, `average_loss` per example,
  `examples` and `confusion_matrix`.

  Args:
    model: a compiled tf.keras.Sequential or tf.keras.Model(inputs, outputs). Training starts from
      its weights unless `model_dir` contains a checkpoint.
    model_dir: the folder of the Estimator's checkpoints.
    distribution_strategy: `off`, `one_device`, `mirrored` or `central_storage`.
    num_gpus: the number of GPUs to use, one replica on each; -1: all GPUs.
    num_cpu_replicas: the number of replicas on logical CPU devices, on a machine without GPUs.
    seed: the seed of random operations in a step, such as dropout.

  Returns:
    A tf.estimator.Estimator. Its `input_fn` must return batches of the per-replica batch size.
    Evaluation uses a single device.

  Raises:
    UserError: the model cannot be converted, or `model_dir` has a checkpoint of another model.
  """
  from estimator_train.process import guest

  # train_steps has no effect: the caller passes steps to Estimator.train.
  settings = Settings(mode='train', model_dir=model_dir, train_steps=1,
                      model=getattr(model, 'name', 'none'), num_gpus=num_gpus, seed=seed,
                      num_cpu_replicas=num_cpu_replicas,
                      distribution_strategy=distribution_strategy)
  _make_single_worker(settings[groups.Devices])
  with guest.restored_process_state(settings.verbosity):
    from estimator_train.training import convert_own
    return convert_own.convert(model, settings)


def _run(settings: Settings) -> Dict[str, Any]:
  from estimator_train import modes
  from estimator_train.process import guest

  worker = _make_single_worker(settings[groups.Devices])
  with guest.restored_process_state(settings.verbosity):
    # When step_timeout_secs expires, the process is ended. Here, that would be the user's process.
    return modes.run(settings.evolve(step_timeout_secs=0), worker)


def _make_single_worker(settings: groups.Devices) -> Any:
  """Returns the Worker of this process, which must be the only task of the run.

  Raises:
    UserError: TF_CONFIG describes several tasks. The process of a task ends when another task is
      lost, so it cannot be the user's process.
  """
  from estimator_train.cluster import tf_config, worker as workers

  worker = workers.make_worker(os.environ, settings.distribution_strategy)
  if worker.cluster is not None and len(worker.cluster.members) > 1:
    raise UserError('train(), evaluate() and convert() cannot run in a cluster of several tasks',
                    'TF_CONFIG has ' + tf_config.count_tasks(worker.cluster),
                    'run python -m estimator_train, or unset TF_CONFIG')
  return worker
