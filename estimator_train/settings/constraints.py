"""Rules between flags: those that always hold, and what a mode requires.

A constraint holds for all settings, and is checked when they are made; a requirement is of some
modes, and is checked by `Settings.for_mode`. Both raise a UserError.
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
  Optimizer,
)

# (groups that the rule reads, rule); (modes, rule).
CONSTRAINTS: List[Tuple[Tuple[type, ...], Callable[..., None]]] = []
REQUIREMENTS: List[Tuple[Sequence[str], Callable[[Any], None]]] = []

# Data sets for which a flag says something; with others the run would not be what it looks like.
_ONLY_FOR = (('train_pattern', ('image_folder',)), ('eval_pattern', ('image_folder',)),
             ('labels', ('image_folder', 'synthetic')),
             ('image_size', ('image_folder', 'oct2017', 'synthetic')))


def constraint(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
  """Registers a rule that takes these groups."""
  def register(rule: Callable[..., None]) -> Callable[..., None]:
    CONSTRAINTS.append((groups, rule))
    return rule
  return register


def requirement(*modes: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
  """Registers a rule of these modes that takes the Settings."""
  def register(rule: Callable[[Any], None]) -> Callable[[Any], None]:
    REQUIREMENTS.append((modes, rule))
    return rule
  return register


@constraint(Data)
def _check_image_size(data: Data) -> None:
  size = data.image_size
  lengths = (2, 3) if data.dataset == 'synthetic' else (2,)
  if size is not None and (len(size) not in lengths
                           or not all(0 < side < 2 ** 15 for side in size)):
    raise UserError('--image_size must be height,width in pixels',
                    '--image_size=' + ','.join(str(side) for side in size),
                    'give one such as 28,28')


@constraint(Data)
def _check_flags_of_data_sets(data: Data) -> None:
  for name, datasets in _ONLY_FOR:
    if getattr(data, name) and data.dataset not in datasets and (
        not user_code.is_own(data.dataset)):
      raise UserError('--{} is for --dataset={}'.format(name, ' or '.join(datasets)),
                      '--{} and --dataset={}'.format(name, data.dataset),
                      'give that, or leave --{} out'.format(name))


@constraint(Duration)
def _check_duration(duration: Duration) -> None:
  if duration.train_steps is not None and duration.train_epochs is not None:
    raise UserError('--train_steps and --train_epochs both say how long to train',
                    '--train_steps={} --train_epochs={}'.format(
                        duration.train_steps, duration.train_epochs),
                    'give one of them')


@constraint(Devices)
def _check_devices(devices: Devices) -> None:
  if devices.num_cpu_replicas and devices.num_gpus > 0:
    raise UserError('a run is on GPUs or on CPU replicas, not on both',
                    '--num_gpus={} --num_cpu_replicas={}'.format(
                        devices.num_gpus, devices.num_cpu_replicas),
                    'give one of them')
  over_workers = devices.distribution_strategy == 'multi_worker_mirrored'
  if devices.all_reduce_alg in (choices.IN_ONE_MACHINE if over_workers else choices.OVER_WORKERS):
    raise UserError(
        '--all_reduce_alg={} is not for --distribution_strategy={}'.format(
            devices.all_reduce_alg, devices.distribution_strategy),
        '--all_reduce_alg={}'.format(devices.all_reduce_alg),
        'choose from ' + ', '.join(name for name in choices.ALL_REDUCE_ALGORITHMS if name not in (
            choices.IN_ONE_MACHINE if over_workers else choices.OVER_WORKERS)))
  if devices.distribution_strategy in choices.SINGLE_REPLICA_STRATEGIES:
    for name in ('num_gpus', 'num_cpu_replicas'):
      if getattr(devices, name) > 1:
        raise UserError(
            '--distribution_strategy={} has one replica'.format(devices.distribution_strategy),
            '--{}={}'.format(name, getattr(devices, name)),
            'give --distribution_strategy=mirrored, or leave --{} out'.format(name))


@constraint(Devices, Optimizer)
def _check_on_nan(devices: Devices, optimizer: Optimizer) -> None:
  if optimizer.on_nan == 'skip' and devices.dtype != 'mixed':
    raise UserError('it is dynamic loss scaling that leaves out a step that is not finite',
                    '--on_nan=skip --dtype={}'.format(devices.dtype),
                    'give --dtype=mixed, or leave --on_nan out')


@constraint(Checkpoints, Evaluation)
def _check_checkpoints(checkpoints: Checkpoints, evaluation: Evaluation) -> None:
  steps, secs = checkpoints.save_checkpoints_steps, checkpoints.save_checkpoints_secs
  every = evaluation.eval_every_steps
  if steps is not None and secs is not None:
    raise UserError('checkpoints are saved by steps or by seconds, not by both',
                    '--save_checkpoints_steps={} --save_checkpoints_secs={}'.format(steps, secs),
                    'give one of them')
  if every is not None and secs is not None:
    raise UserError('an evaluation is of a checkpoint, and --eval_every_steps counts steps',
                    '--eval_every_steps={} --save_checkpoints_secs={}'.format(every, secs),
                    'leave --save_checkpoints_secs out')
  if every is not None and steps is not None and every % steps:
    raise UserError('an evaluation is of a checkpoint, so --eval_every_steps must be a multiple '
                    'of --save_checkpoints_steps',
                    '--eval_every_steps={} --save_checkpoints_steps={}'.format(every, steps),
                    'give --save_checkpoints_steps={}, or leave it out'.format(every))


@requirement(*choices.MODES)
def _check_names(settings: Any) -> None:
  for flag in all_flags().values():
    value = getattr(settings, flag.name)
    if flag.names and not user_code.is_own(value):
      check_choice(flag.name, value, flag.names)


@requirement(*(mode for mode in choices.MODES if mode not in choices.WITHOUT_MODEL_DIR))
def _require_model_dir(settings: Any) -> None:
  if not settings.model_dir:
    raise UserError('--model_dir is required, everything the run makes is kept there',
                    '--mode={} without --model_dir'.format(settings.mode),
                    'give --model_dir=FOLDER')


@requirement('predict')
def _require_input(settings: Any) -> None:
  if not settings.input:
    raise UserError('what to predict is not said', '--mode=predict without --input',
                    'give --input=PATTERN, such as \'DATA/**/*.jpeg\', in quotes')


@requirement('export')
def _require_export_dir(settings: Any) -> None:
  if not settings.export_dir:
    raise UserError('where to export to is not said', '--mode=export without --export_dir',
                    'give --export_dir=FOLDER')


@requirement(*choices.TRAINS)
def _require_duration(settings: Any) -> None:
  if settings.train_steps is None and settings.train_epochs is None:
    raise UserError('how long to train is not said', '--mode={}'.format(settings.mode),
                    'give --train_steps=N or --train_epochs=N')
  if settings.trace_steps and settings.train_steps and (
      settings.trace_steps[0] > settings.train_steps):
    raise UserError('--trace_steps begins after the last step', '--trace_steps={}:{} '
                    '--train_steps={}'.format(*settings.trace_steps, settings.train_steps),
                    'give earlier steps')


@requirement(*choices.TRAINS)
def _check_xla(settings: Any) -> None:
  if settings.enable_xla and settings.num_cpu_replicas > 1 and (
      settings.distribution_strategy in ('mirrored', 'multi_worker_mirrored')):
    raise UserError('XLA of TensorFlow 1.15 does not get variables mirrored over logical CPU '
                    'devices initialized', '--enable_xla --num_cpu_replicas={}'.format(
                        settings.num_cpu_replicas), 'leave one of them out')


@requirement(*(mode for mode in choices.MODES if mode not in choices.READS_CHECKPOINT))
def _check_checkpoint_is_not_chosen(settings: Any) -> None:
  if settings.checkpoint != 'latest':
    raise UserError('--checkpoint is for --mode=' + ', '.join(choices.READS_CHECKPOINT),
                    '--checkpoint={} --mode={}'.format(settings.checkpoint, settings.mode),
                    'leave it out; training goes on from the latest' if settings.trains
                    else 'leave it out')


@requirement(*choices.TRAINS)
def _check_stopping(settings: Any) -> None:
  steps, every = settings.early_stopping_steps, settings.eval_every_steps
  given = ['--{}={}'.format(name, getattr(settings, name))
           for name in ('early_stopping_steps', 'stop_at_accuracy')
           if getattr(settings, name) is not None]
  if not given:
    return
  if settings.mode != 'train_and_evaluate':
    raise UserError('it is evaluations that say when to stop',
                    '{} --mode={}'.format(' '.join(given), settings.mode),
                    'give --mode=train_and_evaluate')
  if every is None:
    raise UserError('it is evaluations that say when to stop, and there is none before the end',
                    ' '.join(given), 'give --eval_every_steps=N')
  if steps is not None and steps < every:
    raise UserError('--early_stopping_steps cannot be seen between two evaluations',
                    '--early_stopping_steps={} --eval_every_steps={}'.format(steps, every),
                    'give --early_stopping_steps={} or more'.format(every))
