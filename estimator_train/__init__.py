"""Trains Keras models as TensorFlow 1.15 Estimators, on one device or many.

Example:

    import estimator_train

    settings = estimator_train.Settings(model_dir='runs/mine', train_steps=100)
    result = estimator_train.train(settings)

The first call of a function imports TensorFlow. The functions neither parse a command line nor end
the process; they raise exceptions, such as UserError if an argument is invalid. They log to
`logging.getLogger('estimator_train')`, and add no handler to this logger.
"""

import importlib.util
import os
import sys
import types
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional

# Builds of TensorFlow 1.15 have this package. NVIDIA's build of it exists for Python 3.8.
if sys.version_info >= (3, 8) and importlib.util.find_spec('tensorflow_core') is None:
  _REASON = ('estimator_train requires TensorFlow 1.15, which exists for Python 3.6 and 3.7: '
             'this is Python {}.{}: use ./run_train.sh, which sets up Python 3.7, or the image of '
             'docs/docker.md'.format(*sys.version_info))
  if os.path.basename(''.join(getattr(sys, 'argv', [])[:1])) in ('-m', 'estimator-train'):
    print('error: ' + _REASON, file=sys.stderr)
    sys.exit(2)
  raise ImportError(_REASON)

from estimator_train.system import signals

# With this argv, `python -m estimator_train` is importing this package. Without a handler, SIGINT
# would end the program with a traceback and another exit code.
if getattr(sys, 'argv', [])[:1] == ['-m']:
  signals.install_exit_handlers()

from estimator_train.data import (
  ArraySplit,
  DataSet,
  ExampleSplit,
  IdxSplit,
  ImageSplit,
  RecordSplit,
  SyntheticSplit,
)
from estimator_train.errors import (
  InvalidValue,
  StoppedBySignal,
  TrainingFailed,
  UserError,
  translate_to_keywords,
)
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import DeviceFlags
from estimator_train.system import keras_config, logs, machine, start_up
from estimator_train.version import __version__ as __version__

if TYPE_CHECKING:
  from estimator_train.training.time_history import TimeHistory

__all__ = ['ArraySplit', 'DataSet', 'ExampleSplit', 'IdxSplit', 'ImageSplit', 'RecordSplit',
           'Settings', 'StoppedBySignal', 'SyntheticSplit', 'TimeHistory', 'TrainingFailed',
           'UserError', 'convert', 'evaluate', 'export', 'predict', 'train']
# The environment variables that a run sets.
_CHANGED_VARIABLES = ('TF_CONFIG', 'TF_XLA_FLAGS', logs.CPP_LEVEL_VARIABLE,
                      start_up.START_TIME_VARIABLE, *machine.ONEDNN_VARIABLE_NAMES)


def train(settings: Settings) -> Dict[str, Any]:
  """Trains a model and, unless `mode='train'`, evaluates it.

  If `model_dir` contains an earlier run, training resumes from its last checkpoint. SIGINT (which a
  notebook sends to interrupt a cell) and SIGTERM end the run after the current step and save a
  checkpoint. The signals are handled only if train() is called in the main thread.

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
  return _run(settings, settings.run.mode if settings.run.trains else 'train_and_evaluate')


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
  return _run(settings, 'evaluate')


def predict(settings: Settings) -> Iterator[Dict[str, Any]]:
  """Predicts the images, rows or records that `input` names, in the order of the files.

  Args:
    settings: the settings of the training run, with any `mode`, and `input`: files, folders or
      patterns. `output` has no effect.

  Returns:
    An iterator of dicts. The dict of an image has `file`, `label`, `probability` and `top`, which
    lists the most probable classes. The dict of a file that cannot be read has `file` and `error`.
    The images are read during the iteration. For examples without classes, a dict has the outputs
    of the model by name, and `file` or `example`, the index of the example.

  Raises:
    UserError: a setting is invalid, or there is no image or no checkpoint.
  """
  from estimator_train import modes

  stack = ExitStack()
  with translate_to_keywords():
    settings = settings.for_mode('predict')
    with _restored_process_state(settings.run.verbosity), \
        modes.open_mode('predict', settings.run.verbosity) as predict_mode:
      predictions = stack.enter_context(predict_mode.open_predictions(
          settings, RunDir(settings.run.required_model_dir)))

  def predicted_examples() -> Iterator[Dict[str, Any]]:
    with stack:
      for batch in predictions.batches:
        yield from batch

  return predicted_examples()


def export(settings: Settings) -> Dict[str, Any]:
  """Exports a checkpoint in `model_dir` to a new version in `export_dir`, for serving.

  Args:
    settings: the settings of the training run, with any `mode`, and `export_dir`.

  Returns:
    A dict with the path of the exported version and its checkpoint.

  Raises:
    UserError: a setting or the checkpoint is invalid, or the export failed.
  """
  return _run(settings, 'export')


def convert(keras_model: Any = None, keras_model_path: Optional[str] = None,
            custom_objects: Optional[Mapping[str, Any]] = None, model_dir: Optional[str] = None,
            config: Any = None, checkpoint_format: Optional[str] = 'saver', *,
            distribution_strategy: Optional[str] = None, num_gpus: Optional[int] = None,
            num_cpu_replicas: int = 0, seed: Optional[int] = None,
            export_outputs: Optional[Mapping[str, Any]] = None) -> Any:
  """Converts a compiled Keras model to an Estimator.

  This function replaces `tf.keras.estimator.model_to_estimator` in a script. No other line of the
  script needs to change. With this function, N replicas train like one replica, with any optimizer.
  Training starts from all weights of the model, including the weights of frozen layers.
  Checkpoints can be resumed on another number of replicas. Evaluation runs on one device, because
  TensorFlow 1.15 loses examples with `eval_distribute`. If the loss is a categorical cross-entropy,
  evaluations also report the figures of `evaluation.json`, such as `accuracy`, `average_loss` per
  example, `macro_f1` and `confusion_matrix` (of more than 100 classes, the most frequent
  `confusions`), unless the model has a metric of the same name.

  Args:
    keras_model: a compiled model. Training starts from its weights unless `model_dir` contains a
      checkpoint. A model that has no weights yet, such as a subclass of tf.keras.Model that has not
      been called, starts from new weights.
    keras_model_path: an .h5 file with a compiled model, instead of `keras_model`.
    custom_objects: functions and classes by name, which a model in a file may require. The custom
      objects in `keras_model` are found without this argument.
    model_dir: the folder of the Estimator's checkpoints; None: the `model_dir` of `config`, or a
      temporary folder.
    config: a tf.estimator.RunConfig.
    checkpoint_format: `saver`, or `checkpoint` for tf.train.Checkpoint.
    distribution_strategy: `off`, `one_device`, `mirrored` or `central_storage`; None: the
      strategy of `config`, or `mirrored` if a number of replicas is given.
    num_gpus: the number of GPUs to use, one replica on each; -1: all GPUs.
    num_cpu_replicas: the number of replicas on logical CPU devices, on a machine without GPUs.
    seed: the seed of random operations in a step, such as dropout; None: the seed of `config`.
    export_outputs: further signatures of an exported model. A key is the name of an output, and its
      value is a class in tf.estimator.export such as `RegressionOutput`.

  Returns:
    A tf.estimator.Estimator. With several replicas, its `input_fn` must return a tf.data.Dataset of
    batches per replica.

  Raises:
    ValueError: the arguments contradict each other, or the model has not been compiled.
    UserError: an argument is invalid, and the error has a remedy; or a device does not exist. The
      error is also a ValueError.
  """
  devices = None
  if distribution_strategy is not None or num_gpus is not None or num_cpu_replicas:
    devices = Settings(distribution_strategy=distribution_strategy or 'mirrored',
                       num_gpus=-1 if num_gpus is None else num_gpus,
                       num_cpu_replicas=num_cpu_replicas).devices
  with translate_to_keywords(InvalidValue), _restored_process_state(restores_session=False):
    from estimator_train.model import convert as conversion
    return conversion.convert(keras_model, keras_model_path, custom_objects, model_dir, config,
                              checkpoint_format, export_outputs, seed, devices)


@contextmanager
def _restored_process_state(verbosity: int = 0, restores_session: bool = True) -> Iterator[None]:
  """Imports TensorFlow for a `with` block, and restores the caller's process after the block.

  The state comprises environment variables, TensorFlow's log level, malloc's parameters and the
  Keras session.

  Args:
    verbosity: value of --verbosity. Below 1, warnings of TensorFlow are not shown.
    restores_session: whether the state comprises the Keras session.
  """
  variables = {name: os.environ[name] for name in _CHANGED_VARIABLES if name in os.environ}
  # The time to the first step is measured from this call, not from the start of the notebook.
  os.environ[start_up.START_TIME_VARIABLE] = start_up.uptime_text()
  if verbosity < 1:
    logs.silence_tensorflow()
  keeps_memory = machine.tune_for_cpu_training()
  try:
    with ExitStack() as stack:
      with warnings.catch_warnings(), keras_config.translate_errors():
        if verbosity < 1:
          warnings.simplefilter('ignore')
        import tensorflow.compat.v1 as tf

        from estimator_train.tf_patches import keras
      stack.callback(tf.logging.set_verbosity, tf.logging.get_verbosity())
      tf.logging.set_verbosity(tf.logging.INFO if verbosity > 0 else tf.logging.ERROR)
      if restores_session:
        stack.enter_context(keras.preserve_session())
      yield
  finally:
    if keeps_memory:
      machine.return_freed_memory()
    for name in _CHANGED_VARIABLES:
      os.environ.pop(name, None)
    os.environ.update(variables)


def _run(settings: Settings, mode: str) -> Dict[str, Any]:
  """Runs a mode in this process, restores the state of the process, and returns the result."""
  from estimator_train import modes

  with translate_to_keywords():
    settings = settings.for_mode(mode)
    process = _single_process(settings.devices)
    with _restored_process_state(settings.run.verbosity):
      # When step_timeout_secs expires, the program ends its process. This process belongs to the
      # caller, so the timeout is disabled.
      return modes.run(settings.evolve(step_timeout_secs=0), process)


def _single_process(flags: DeviceFlags) -> Any:
  """Returns this process, which must be the only task of the run.

  Raises:
    UserError: TF_CONFIG describes several tasks. The process of a task ends when another task is
      lost, so a task cannot run in the user's process.
  """
  from estimator_train.distribution.process import identify_process

  process = identify_process(os.environ, flags.distribution_strategy)
  if process.cluster is not None and len(process.cluster.members) > 1:
    raise UserError('the functions of estimator_train cannot run in a cluster of several tasks',
                    'TF_CONFIG has ' + process.cluster.task_summary,
                    'run python -m estimator_train, or unset TF_CONFIG')
  return process


class _Package(types.ModuleType):
  """This package, with the attribute TimeHistory, whose first use imports TensorFlow."""

  def __getattr__(self, name: str) -> Any:
    if name != 'TimeHistory':
      raise AttributeError('module {!r} has no attribute {!r}'.format(__name__, name))
    with translate_to_keywords(), _restored_process_state(restores_session=False):
      from estimator_train.training.time_history import TimeHistory
    return TimeHistory

  def __dir__(self) -> List[str]:
    return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
