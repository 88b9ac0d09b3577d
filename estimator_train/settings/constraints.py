"""Defines rules between flags. A rule raises a UserError if the values of the flags break the rule.

The constructor of Settings checks the constraints, which hold in all modes. `Settings.for_mode`
checks the requirements, which hold only in the modes that are given to their decorator.
"""

from typing import Any, Callable, List, Sequence, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import choices, user_code
from estimator_train.settings.flag import all_flags, check_choice
from estimator_train.settings.groups import (
  Checkpoints,
  Data,
  Devices,
  Duration,
  Evaluation,
  Input,
  Optimizer,
)

# (The classes in groups.py whose instances the rule takes as arguments, the rule).
CONSTRAINTS: List[Tuple[Tuple[type, ...], Callable[..., None]]] = []
# (The modes in which the rule applies, the rule, which takes Settings).
REQUIREMENTS: List[Tuple[Sequence[str], Callable[[Any], None]]] = []

# (A flag, the built-in data sets that use the flag). With another built-in data set, the flag would
# have no effect.
_DATA_SETS_BY_FLAG = (
    ('train_pattern', ('image_folder', 'tfrecord')), ('eval_pattern', ('image_folder', 'tfrecord')),
    ('labels', ('image_folder', 'tfrecord', 'synthetic')),
    ('image_size', ('image_folder', 'tfrecord', 'oct2017', 'synthetic')),
    *((name, ('tfrecord',)) for name in ('image_key', 'label_key', 'label_offset', 'compression')))


def constraint(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
  """Returns a decorator that registers a function as a constraint, which holds in all modes.

  Args:
    *groups: the classes in groups.py whose instances are the arguments of the function.
  """
  def register(rule: Callable[..., None]) -> Callable[..., None]:
    CONSTRAINTS.append((groups, rule))
    return rule
  return register


def requirement(*modes: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
  """Returns a decorator that registers a function of Settings as a requirement.

  Args:
    *modes: the modes in which the requirement holds. It is not checked in other modes.
  """
  def register(rule: Callable[[Any], None]) -> Callable[[Any], None]:
    REQUIREMENTS.append((modes, rule))
    return rule
  return register


@constraint(Data)
def _check_image_size(data: Data) -> None:
  size = data.image_size
  has_channels = data.dataset in ('synthetic', 'tfrecord')
  lengths = (2, 3) if has_channels else (2,)
  form = 'height,width or height,width,channels' if has_channels else 'height,width in pixels'
  if size is not None and (len(size) not in lengths
                           or not all(0 < side < 2 ** 15 for side in size)):
    raise UserError('--image_size must be ' + form,
                    '--image_size=' + ','.join(str(side) for side in size),
                    'give a size such as 28,28')


@constraint(Data)
def _check_flags_of_data_sets(data: Data) -> None:
  """Raises a UserError if a flag is given that the data set does not use."""
  for name, datasets in _DATA_SETS_BY_FLAG:
    if getattr(data, name) != all_flags()[name].default and data.dataset not in datasets and (
        not user_code.is_function_name(data.dataset)):
      raise UserError('--{} is only for --dataset={}'.format(name, ' or '.join(datasets)),
                      '--{} and --dataset={}'.format(name, data.dataset),
                      'change --dataset, or omit --{}'.format(name))


@constraint(Duration)
def _check_duration(duration: Duration) -> None:
  if duration.train_steps is not None and duration.train_epochs is not None:
    raise UserError('--train_steps and --train_epochs exclude each other',
                    '--train_steps={} --train_epochs={}'.format(
                        duration.train_steps, duration.train_epochs),
                    'give one of them')


@constraint(Devices)
def _check_devices(devices: Devices) -> None:
  if devices.num_cpu_replicas and devices.num_gpus > 0:
    raise UserError('a run uses GPUs or CPU replicas, not both',
                    '--num_gpus={} --num_cpu_replicas={}'.format(
                        devices.num_gpus, devices.num_cpu_replicas),
                    'give one of them')
  is_multi_worker = devices.distribution_strategy == 'multi_worker_mirrored'
  unsupported = (choices.SINGLE_HOST_ALL_REDUCE if is_multi_worker
                 else choices.MULTI_WORKER_ALL_REDUCE)
  if devices.all_reduce_alg in unsupported:
    raise UserError(
        '--distribution_strategy={} does not support this --all_reduce_alg'.format(
            devices.distribution_strategy),
        '--all_reduce_alg={}'.format(devices.all_reduce_alg),
        'choose from ' + ', '.join(name for name in choices.ALL_REDUCE_ALGORITHMS
                                   if name not in unsupported))
  if devices.distribution_strategy in choices.SINGLE_REPLICA_STRATEGIES:
    for name in ('num_gpus', 'num_cpu_replicas'):
      if getattr(devices, name) > 1:
        raise UserError(
            '--distribution_strategy={} has one replica'.format(devices.distribution_strategy),
            '--{}={}'.format(name, getattr(devices, name)),
            'give --distribution_strategy=mirrored, or omit --{}'.format(name))


@constraint(Devices, Optimizer)
def _check_on_nan(devices: Devices, optimizer: Optimizer) -> None:
  if optimizer.on_nan == 'skip' and devices.dtype != 'mixed':
    raise UserError('--on_nan=skip requires dynamic loss scaling, which skips updates that are not '
                    'finite',
                    '--on_nan=skip --dtype={}'.format(devices.dtype),
                    'give --dtype=mixed, or omit --on_nan')


@constraint(Checkpoints, Evaluation)
def _check_intervals(checkpoints: Checkpoints, evaluation: Evaluation) -> None:
  """Raises a UserError if the intervals between checkpoints and between evaluations conflict."""
  save_steps, save_secs = checkpoints.save_checkpoints_steps, checkpoints.save_checkpoints_secs
  eval_steps = evaluation.eval_every_steps
  if save_steps is not None and save_secs is not None:
    raise UserError('--save_checkpoints_steps and --save_checkpoints_secs exclude each other',
                    '--save_checkpoints_steps={} --save_checkpoints_secs={}'.format(
                        save_steps, save_secs),
                    'give one of them')
  if eval_steps is not None and save_secs is not None:
    raise UserError('--eval_every_steps requires checkpoints by steps, not by time',
                    '--eval_every_steps={} --save_checkpoints_secs={}'.format(
                        eval_steps, save_secs),
                    'omit --save_checkpoints_secs')
  if eval_steps is not None and save_steps is not None and eval_steps % save_steps:
    raise UserError('--eval_every_steps must be a multiple of --save_checkpoints_steps, '
                    'because each evaluation reads a checkpoint',
                    '--eval_every_steps={} --save_checkpoints_steps={}'.format(
                        eval_steps, save_steps),
                    'give --save_checkpoints_steps={}, or omit it'.format(eval_steps))


@constraint(Input)
def _check_augment(settings: Input) -> None:
  """Raises a UserError if the images to augment would be cached."""
  if settings.augment == 'none':
    return
  for flag, is_given in {'--cache': settings.cache not in ('auto', 'none'),
                         '--cache_features': settings.cache_features,
                         '--input_pipeline=published': settings.input_pipeline != 'exact'}.items():
    if is_given:
      raise UserError('--augment does not support ' + flag,
                      '--augment={} with {}'.format(settings.augment, flag),
                      'omit one of the two')


@constraint(Input)
def _check_input_pipeline(settings: Input) -> None:
  """Raises a UserError if a flag requires that examples are read by their indices."""
  if settings.input_pipeline == 'exact':
    return
  given = {'--cache': settings.cache not in ('auto', 'none'),
           '--cache_features': settings.cache_features,
           '--on_bad_image=skip': settings.on_bad_image == 'skip'}
  for flag, is_given in given.items():
    if is_given:
      raise UserError('--input_pipeline=published does not support ' + flag,
                      '--input_pipeline=published with ' + flag,
                      'omit {}, or give --input_pipeline=exact'.format(flag))


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
def _require_input(settings: Any) -> None:
  # Without --input, the test examples of a data set of the user are predicted.
  if not settings.input and not user_code.is_function_name(settings.dataset):
    raise UserError('--mode=predict requires --input', '--mode=predict without --input',
                    'give --input=PATTERN, such as \'DATA/**/*.jpeg\', in quotes')


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
