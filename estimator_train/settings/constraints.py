"""Defines the rules between flags that hold in all modes.

The constructor of Settings checks these constraints. requirements.py has the rules that hold only
in some modes. A rule raises a UserError if the values of the flags break the rule.
"""

from typing import Callable, List, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import choices, user_code
from estimator_train.settings.flag import all_flags
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
  if devices.distribution_strategy == 'horovod' and devices.all_reduce_alg:
    raise UserError('Horovod chooses its own all-reduce algorithm',
                    '--distribution_strategy=horovod --all_reduce_alg=' + devices.all_reduce_alg,
                    'omit --all_reduce_alg; environment variables HOROVOD_* configure Horovod')
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
            '--distribution_strategy={} has one replica in each process'.format(
                devices.distribution_strategy), '--{}={}'.format(name, getattr(devices, name)),
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
  for flag, is_given, remedy in (
      ('--cache', settings.cache not in ('auto', 'none'), '--cache=none'),
      ('--cache_features', settings.cache_features, '--cache_features=false'),
      ('--input_pipeline=published', settings.input_pipeline != 'exact', '--input_pipeline=exact')):
    if is_given:
      raise UserError('--augment does not support ' + flag,
                      '--augment={} with {}'.format(settings.augment, flag),
                      'give --augment=none or ' + remedy)


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
