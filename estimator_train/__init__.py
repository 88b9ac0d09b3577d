"""Trains Keras models as TensorFlow 1.15 Estimators, on one device or many.

Example:

    import estimator_train

    settings = estimator_train.Settings(model_dir='runs/mine', train_steps=100)
    result = estimator_train.train(settings)

TensorFlow is imported by the first call. The functions neither parse a command line nor end the
process; they raise exceptions, UserError if an argument is invalid. Log messages go to
`logging.getLogger('estimator_train')`, to which the package adds no handler.
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

  If `model_dir` contains a run, training resumes. SIGINT, which a notebook sends to interrupt a
  cell, and SIGTERM end the run after the current step, with a checkpoint. In threads other than the
  main one, signals are not handled.

  Args:
    settings: the values of the program's flags; `model` and `dataset` may be functions.

  Returns:
    The JSON object that the program prints last, as a dict: `accuracy`, `global_step`,
    `examples_per_sec` and others.

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

  It differs from `tf.keras.estimator.model_to_estimator` as follows: N replicas train like one with
  any optimizer, training starts from all weights of the model, including those of frozen layers,
  and checkpoints can be resumed on another number of replicas. If the loss is a categorical
  cross-entropy, evaluations report `accuracy`, `average_loss` per example, `examples` and
  `confusion_matrix`.

  Args:
    model: a compiled tf.keras.Sequential or tf.keras.Model(inputs, outputs). Training starts from
      its weights unless `model_dir` contains a checkpoint.
    model_dir: the folder of the Estimator's checkpoints.
    distribution_strategy: `off`, `one_device`, `mirrored` or `central_storage`.
    num_gpus: the number of GPUs to use, one replica on each; -1: all GPUs.
    num_cpu_replicas: the number of replicas on logical CPU devices, on a machine without GPUs.
    seed: the seed of random operations in a step, such as dropout.

  Returns:
    A tf.estimator.Estimator. Its `input_fn` must return batches per replica. It evaluates on one
    device.

  Raises:
    UserError: the model cannot be converted, or the checkpoint in `model_dir` is of another model.
  """
  from estimator_train.process import guest

  # train_steps has no effect: the caller passes steps to Estimator.train.
  settings = Settings(mode='train', model_dir=model_dir, train_steps=1,
                      model=getattr(model, 'name', 'none'), num_gpus=num_gpus, seed=seed,
                      num_cpu_replicas=num_cpu_replicas,
                      distribution_strategy=distribution_strategy)
  _find_worker(settings[groups.Devices])
  with guest.restored_process_state(settings.verbosity):
    from estimator_train.training import convert_own
    return convert_own.convert(model, settings)


def _run(settings: Settings) -> Dict[str, Any]:
  from estimator_train import modes
  from estimator_train.process import guest

  worker = _find_worker(settings[groups.Devices])
  with guest.restored_process_state(settings.verbosity):
    # When this timeout expires, the process ends, and here it is the user's process.
    return modes.run(settings.evolve(step_timeout_secs=0), worker)


def _find_worker(settings: groups.Devices) -> Any:
  """Returns the role of this process in the run.

  Raises:
    UserError: TF_CONFIG describes several tasks. The process of a task ends when another task is
      lost, so it cannot be the user's process.
  """
  from estimator_train.cluster import tf_config, worker

  found = worker.make_worker(os.environ, settings.distribution_strategy)
  if found.cluster is not None and len(found.cluster.members) > 1:
    raise UserError('the tasks of a cluster must be processes of their own',
                    'TF_CONFIG has ' + tf_config.count_tasks(found.cluster),
                    'run python -m estimator_train, or unset TF_CONFIG')
  return found
