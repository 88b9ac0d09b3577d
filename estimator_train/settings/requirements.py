"""Defines what modes require of the flags.

`Settings.for_mode` checks these requirements. constraints.py has the rules that hold in all modes.
A rule raises a UserError if the values of the flags break the rule.
"""

import importlib.util
from typing import Any, Callable, List, Sequence, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import choices, user_code
from estimator_train.settings.flag import all_flags, check_choice

_ONNX_PACKAGES = ('tf2onnx', 'onnx', 'onnxruntime')
# (The modes in which the rule applies, the rule, which takes Settings).
REQUIREMENTS: List[Tuple[Sequence[str], Callable[[Any], None]]] = []


def requirement(*modes: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
  """Returns a decorator that registers a function of Settings as a requirement.

  Args:
    *modes: the modes in which the requirement holds. It is not checked in other modes.
  """
  def register(rule: Callable[[Any], None]) -> Callable[[Any], None]:
    REQUIREMENTS.append((modes, rule))
    return rule
  return register


@requirement(*choices.MODES)
def _check_built_in_names(settings: Any) -> None:
  """Raises a UserError if a value is neither a built-in name nor `package.module:function`."""
  for flag in all_flags().values():
    value = getattr(settings, flag.name)
    if flag.built_in_names and not user_code.is_function_name(value):
      check_choice(flag.name, value, flag.built_in_names)


@requirement(*(mode for mode in choices.MODES if mode not in choices.MODES_WITHOUT_MODEL_DIR))
def _require_model_dir(settings: Any) -> None:
  if not settings.model_dir:
    raise UserError('--model_dir is required',
                    '--mode={} without --model_dir'.format(settings.mode),
                    'give --model_dir=FOLDER')


@requirement('predict')
def _require_input_unless_own_data(settings: Any) -> None:
  # Without --input, the test examples of a data set of the user are predicted.
  if not user_code.is_function_name(settings.dataset):
    require_input(settings)


def require_input(settings: Any) -> str:
  """Returns `--input`; raises a UserError if this flag is not given."""
  if not settings.input:
    raise UserError('--mode=predict requires --input', '--mode=predict without --input',
                    'give --input=PATTERN, such as \'DATA/**/*.jpeg\', in quotes')
  return str(settings.input)


@requirement('write_tfrecords')
def _require_output_folder(settings: Any) -> None:
  if settings.output == '-':
    raise UserError('--mode=write_tfrecords requires --output', '--mode=write_tfrecords without '
                    '--output', 'give --output=FOLDER')


@requirement(*(mode for mode in choices.MODES if mode != 'write_tfrecords'))
def _check_num_shards_is_not_given(settings: Any) -> None:
  if settings.num_shards is not None:
    raise UserError('--num_shards is only for --mode=write_tfrecords',
                    '--num_shards={} --mode={}'.format(settings.num_shards, settings.mode),
                    'give --mode=write_tfrecords, or omit --num_shards')


@requirement('report')
def _require_runs(settings: Any) -> None:
  if not settings.runs:
    raise UserError('--mode=report requires --runs', '--mode=report without --runs',
                    'give --runs=FOLDER, or several folders to compare: --runs=FOLDER,FOLDER')


@requirement(*(mode for mode in choices.MODES if mode != 'report'))
def _check_runs_are_not_given(settings: Any) -> None:
  if settings.runs:
    raise UserError('--runs is only for --mode=report',
                    '--runs={} --mode={}'.format(','.join(settings.runs), settings.mode),
                    'give --mode=report, or omit --runs')


@requirement('export')
def _require_export_dir(settings: Any) -> None:
  if not settings.export_dir:
    raise UserError('--mode=export requires --export_dir', '--mode=export without --export_dir',
                    'give --export_dir=FOLDER')


@requirement('export', *choices.TRAINING_MODES)
def _require_onnx_packages(settings: Any) -> None:
  """Raises a UserError before the training if its export would fail."""
  if not settings.export_dir or settings.export_format != 'onnx':
    return
  missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise UserError('--export_format=onnx requires the extra `onnx`',
                    'not installed: ' + ', '.join(missing),
                    'install it with `pip install estimator_train[onnx]`')


@requirement(*choices.TRAINING_MODES)
def _require_duration(settings: Any) -> None:
  """Raises a UserError if the duration of training is missing, or ends before the traced steps."""
  if settings.train_steps is None and settings.train_epochs is None:
    raise UserError('training requires --train_steps or --train_epochs',
                    '--mode={} without either'.format(settings.mode),
                    'give --train_steps=N or --train_epochs=N')
  if settings.trace_steps and settings.train_steps and (
      settings.trace_steps[0] > settings.train_steps):
    raise UserError('--trace_steps must not start after --train_steps', '--trace_steps={}:{} '
                    '--train_steps={}'.format(*settings.trace_steps, settings.train_steps),
                    'give earlier steps')


@requirement(*choices.TRAINING_MODES)
def _check_xla(settings: Any) -> None:
  if settings.enable_xla and settings.num_cpu_replicas > 1 and (
      settings.distribution_strategy in ('mirrored', 'multi_worker_mirrored')):
    raise UserError('XLA of TensorFlow 1.15 cannot initialize variables that are mirrored over '
                    'logical CPU devices', '--enable_xla --num_cpu_replicas={}'.format(
                        settings.num_cpu_replicas), 'omit one of them')


@requirement(*(mode for mode in choices.MODES if mode not in choices.MODES_WITH_CHECKPOINT_FLAG))
def _check_checkpoint_is_not_chosen(settings: Any) -> None:
  if settings.checkpoint != 'latest':
    raise UserError('--checkpoint is only for --mode='
                    + ', '.join(choices.MODES_WITH_CHECKPOINT_FLAG),
                    '--checkpoint={} --mode={}'.format(settings.checkpoint, settings.mode),
                    'omit it; training resumes from the latest checkpoint' if settings.trains
                    else 'omit it')


@requirement(*choices.TRAINING_MODES)
def _check_early_stopping(settings: Any) -> None:
  stopping_steps, eval_steps = settings.early_stopping_steps, settings.eval_every_steps
  given = ['--{}={}'.format(name, getattr(settings, name))
           for name in ('early_stopping_steps', 'stop_at_accuracy')
           if getattr(settings, name) is not None]
  if not given:
    return
  if settings.mode != 'train_and_evaluate':
    raise UserError('only a run that evaluates can stop early',
                    '{} --mode={}'.format(' '.join(given), settings.mode),
                    'give --mode=train_and_evaluate')
  if eval_steps is None:
    raise UserError('only a run that evaluates before its end can stop early',
                    ' '.join(given), 'give --eval_every_steps=N')
  if stopping_steps is not None and stopping_steps < eval_steps:
    raise UserError('--early_stopping_steps must not be less than --eval_every_steps',
                    '--early_stopping_steps={} --eval_every_steps={}'.format(
                        stopping_steps, eval_steps),
                    'give --early_stopping_steps={} or more'.format(eval_steps))
