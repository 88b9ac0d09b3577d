"""The public functions: the modes of the program, and `convert`.

Each function that runs a mode takes Settings, or flags as keywords.
"""

import functools
import os
from contextlib import ExitStack
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, TypeVar

from estimator_train.errors import InvalidValue, UserError, WrongArgument, translate_to_keywords
from estimator_train.library.process_state import restore_process_state
from estimator_train.library.results import (
  EvaluationResult,
  ExportResult,
  LearningRateResult,
  Predictions,
  ReportResult,
  TrainingResult,
)
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, command_line, rules, signatures, user_code
from estimator_train.settings.flags import DeviceFlags

_DEFAULT_MODE = 'train_and_evaluate'  # Of training.
_REMEDY_OF_ARRAYS = ('give dataset=FUNCTION, a function that returns an estimator_train.DataSet, '
                     'for example with ArraySplit(images, classes) as train')
_Function = TypeVar('_Function', bound=Callable[..., Any])


def _takes_flags(names: Iterable[str], *leading: str,
                 shows_defaults: bool = True) -> Callable[[_Function], _Function]:
  """Returns a decorator that shows flags as keywords in the signature of a function.

  The function rejects further positional arguments, such as the arrays of Keras's `fit`.

  Args:
    leading: the names of further positional parameters.
    shows_defaults: False if omitted flags have the values of the run.
  """
  def decorate(function: _Function) -> _Function:
    signature = signatures.make_signature(names, [
        signatures.optional('settings', Settings),
        *(signatures.optional(name, Any) for name in leading)], shows_defaults)
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
      if len(arguments) > 1 + len(leading):
        raise WrongArgument(
            '{} takes Settings or keywords'.format(function.__name__),
            'got {} positional arguments'.format(len(arguments)), _REMEDY_OF_ARRAYS)
      return function(*arguments, **keywords)

    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        return_annotation=function.__annotations__['return'])
    return call  # type: ignore[return-value]
  return decorate


@_takes_flags(signatures.names_of_mode(_DEFAULT_MODE))
def train(settings: Optional[Settings] = None, **flags: Any) -> TrainingResult:
  """Trains a model and, unless `mode='train'`, evaluates it.

  The flags are keywords, instead of `settings` or to change them. If `model_dir` contains an
  earlier run, training resumes from its last checkpoint. Unless the data, the model or `weights`
  are given, the flags that are not given are those of the earlier run.

  SIGINT (which a notebook sends to interrupt a cell) and SIGTERM end the run after the current step
  and save a checkpoint. The signals are handled only if train() is called in the main thread.

  Args:
    settings: the values of the flags; `model` and `dataset` may be functions.

  Returns:
    A dict with attributes: `accuracy`, `global_step`, `examples_per_sec` and others.

  Raises:
    UserError: a setting, the data or the model is invalid.
    TrainingFailed: training cannot continue, for example because the loss is not finite.
    StoppedBySignal: a signal ended the run.
  """
  user_code.check_is_not_importing()
  with translate_to_keywords():
    settings = _make_settings(_DEFAULT_MODE, settings, flags)
    return TrainingResult(_run(settings, settings.run.mode if settings.run.trains
                               else _DEFAULT_MODE, flags))


@_takes_flags(signatures.names_of_mode('evaluate'), shows_defaults=False)
def evaluate(settings: Optional[Settings] = None, **flags: Any) -> EvaluationResult:
  """Evaluates a checkpoint in `model_dir` on the test examples.

  The flags are keywords, instead of `settings` or to change them. Without `settings`, the flags
  that are not given are those of the run in `model_dir`. `checkpoint` chooses the checkpoint, by
  default the latest one.

  Args:
    settings: the settings of the training run, with any `mode`.

  Returns:
    A dict with attributes: `accuracy`, `average_loss`, `examples` and others.

  Raises:
    UserError: a setting, the data or the checkpoint is invalid.
  """
  with translate_to_keywords():
    return EvaluationResult(_run(_make_settings('evaluate', settings, flags), 'evaluate', flags))


@_takes_flags(signatures.names_of_mode('predict'), 'input', shows_defaults=False)
def predict(settings: Optional[Settings] = None, input: Any = None, **flags: Any) -> Predictions:
  """Predicts images, rows or records, in the order of the input.

  The flags are keywords, instead of `settings` or to change them. Without `settings`, the flags
  that are not given are those of the run in `model_dir`. `output` has no effect.

  The dict of an image has `file` or `example`, the index in the input, `label`, `probability` and
  `top`, which lists the most probable classes. The dict of a file that cannot be read, or of an
  invalid row, has `error` instead. For examples without classes, a dict has the outputs of the
  model by name. Files are read during the iteration.

  Args:
    settings: the settings of the training run, with any `mode`.
    input: what to predict; None for the `input` of the settings. One of

      - files, folders or patterns, as a path or a list of paths
      - images of any size, as a uint8 array [height, width], [height, width, 1 or 3],
        [N, height, width] or [N, height, width, 1 or 3], or as a list of such arrays. An array of
        three dimensions is one image if the last dimension is 1 or 3. Flattened images of the size
        of the model, such as [N, 784], are images, too.
      - for a model without images: an array [N, ...] for its only input, a dict of arrays or lists
        by the names of its inputs, a data frame, or a list of dicts, one per row

  Returns:
    An iterator of dicts with attributes.

  Raises:
    UserError: a setting or the input is invalid, or there is no image or no checkpoint.
  """
  from estimator_train import modes

  stack = ExitStack()
  with translate_to_keywords():
    values = None
    if isinstance(input, (str, os.PathLike)):
      flags['input'] = input
    elif input is not None:
      values, flags['input'] = input, 'values in memory'
    settings = _make_settings('predict', settings, flags).for_mode('predict')
    with restore_process_state(settings.run.verbosity), \
        modes.open_mode('predict', settings.run.verbosity) as predict_mode:
      rules.warn_of_flags_without_effect('predict', flags)
      predictions = stack.enter_context(predict_mode.open_predictions(
          settings, RunDir(settings.run.required_model_dir), values))
  return Predictions(predictions.batches, stack)


@_takes_flags(signatures.names_of_mode('export'), shows_defaults=False)
def export(settings: Optional[Settings] = None, **flags: Any) -> ExportResult:
  """Exports a checkpoint in `model_dir` to a new version in `export_dir`, for serving.

  The flags are keywords, instead of `settings` or to change them. Without `settings`, the flags
  that are not given are those of the run in `model_dir`.

  Args:
    settings: the settings of the training run, with any `mode`. Without `export_dir`, the folder is
      `MODEL_DIR/export/FORMAT`.

  Returns:
    A dict with attributes: the `path` of the exported version, its `checkpoint` and others.

  Raises:
    UserError: a setting or the checkpoint is invalid, or the export failed.
  """
  with translate_to_keywords():
    return ExportResult(_run(_make_settings('export', settings, flags), 'export', flags))


@_takes_flags(signatures.names_of_mode('lr_finder'))
def lr_find(settings: Optional[Settings] = None, **flags: Any) -> LearningRateResult:
  """Trains a new model for a few steps while the learning rate rises, and suggests a rate.

  The chart of the loss over the rate is on the report page in `model_dir`. The flags are keywords,
  instead of `settings` or to change them. `train_steps` is the number of steps, by default 100.

  Args:
    settings: the settings of the training, with any `mode`.

  Returns:
    A dict with attributes: `learning_rate`, the suggested rate or None, and others.

  Raises:
    UserError: a setting, the data or the model is invalid.
  """
  with translate_to_keywords():
    settings = _make_settings('lr_finder', settings, flags)
    return LearningRateResult(_run(settings, 'lr_finder', flags))


@_takes_flags(('runs', 'model_dir', 'verbosity'))
def report(settings: Optional[Settings] = None, **flags: Any) -> ReportResult:
  """Writes the report page of an existing run, or a page that compares several runs.

  Args:
    settings: settings with `runs` and `model_dir`, and any `mode`; None to give keywords.
    runs: the folders of the runs.
    model_dir: the folder of the page.
    verbosity: 1 to show debug messages, too.

  Returns:
    A dict with attributes: `page`, the path of the page, and `runs`, the main figures of each run.

  Raises:
    UserError: a folder does not contain a run.
  """
  with translate_to_keywords():
    return ReportResult(_run(_make_settings('report', settings, flags), 'report', flags))


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
  with translate_to_keywords(InvalidValue), restore_process_state(restores_session=False):
    from estimator_train.model import convert as conversion
    return conversion.convert(keras_model, keras_model_path, custom_objects, model_dir, config,
                              checkpoint_format, export_outputs, seed, devices)


def _make_settings(mode: str, settings: Optional[Settings], flags: Dict[str, Any]) -> Settings:
  """Returns the settings of a call. Keywords without settings are read like a command line."""
  if settings is None:
    with translate_to_keywords(InvalidValue):
      return command_line.settings_from_keywords(mode, flags)
  if not isinstance(settings, Settings):
    raise WrongArgument('the settings must be an object of the class Settings',
                        'got {}'.format(type(settings).__name__),
                        _REMEDY_OF_ARRAYS if hasattr(settings, 'shape') and mode != 'predict' else
                        'give FLAG=VALUE as keywords{}, or **values for a dict of them'.format(
                            ', such as input=IMAGES' if mode == 'predict' else ''))
  return settings.evolve(**flags) if flags else settings


def _run(settings: Settings, mode: str, flags: Dict[str, Any]) -> Dict[str, Any]:
  """Runs a mode in this process, restores the state of the process, and returns the result.

  Args:
    flags: the keywords of the call.
  """
  from estimator_train import modes

  settings = settings.for_mode(mode)
  process = _single_process(settings.devices)
  uses_tensorflow = mode not in modes.MODES_WITHOUT_TENSORFLOW
  with restore_process_state(settings.run.verbosity, uses_tensorflow=uses_tensorflow):
    rules.warn_of_flags_without_effect(mode, flags)
    return modes.run(settings, process)


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
