"""What a run was asked to do, checked: one value a flag, and what follows from them."""

import math
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Tuple

from estimator_train.errors import UserError

MODES = ('train_and_evaluate', 'train', 'evaluate', 'download')
OPTIMIZERS = ('adam', 'sgd', 'momentum', 'rmsprop')
STRATEGIES = ('off', 'one_device', 'mirrored', 'central_storage')
ALL_REDUCE_ALGORITHMS = ('nccl', 'hierarchical_copy', 'reduction_to_one_device')
LEARNING_RATE_SCALINGS = ('none', 'linear', 'sqrt')
CACHES = ('none', 'memory')
SINGLE_REPLICA_STRATEGIES = ('off', 'one_device')


class _Fields(NamedTuple):
  """The fields of Settings; each is the flag of the same name in flags.py, and is told there."""
  mode: str = 'train_and_evaluate'
  dataset: str = 'fashion_mnist_sample'
  data_dir: Optional[str] = None
  image_size: Tuple[int, int] = (28, 28)
  model: str = 'fashion_cnn'
  weights: str = 'none'
  model_dir: Optional[str] = None
  train_steps: Optional[int] = None
  train_epochs: Optional[int] = None
  eval_every_steps: Optional[int] = None
  batch_size: int = 128
  optimizer: str = 'adam'
  learning_rate: float = 0.001
  scale_learning_rate: str = 'none'
  base_batch_size: int = 128
  lr_warmup_epochs: float = 0.
  seed: int = 1
  distribution_strategy: str = 'mirrored'
  num_gpus: int = -1
  num_cpu_replicas: int = 0
  all_reduce_alg: Optional[str] = None
  num_packs: int = 1
  gpu_memory_growth: bool = True
  inter_op_parallelism_threads: int = 0
  intra_op_parallelism_threads: int = 0
  shuffle_buffer: int = 5000
  prefetch: int = 2
  cache: str = 'none'
  throughput_warmup_steps: int = 10
  log_every_steps: int = 100
  save_checkpoints_steps: Optional[int] = None
  save_checkpoints_secs: Optional[int] = None
  keep_checkpoint_max: int = 5
  verbosity: int = 0


class Settings(_Fields):
  """Every flag's value, valid by itself and together with the others.

  Raises:
    UserError: when it is made of values that cannot be.
  """
  __slots__ = ()

  def __new__(cls, **values: Any) -> 'Settings':
    settings = super().__new__(cls, **values)
    _check_choices(settings)
    _check_bounds(settings)
    _check_places(settings)
    _check_length(settings)
    _check_devices(settings)
    _check_checkpoints(settings)
    return settings

  @property
  def trains(self) -> bool:
    """Whether this run updates weights."""
    return self.mode in ('train_and_evaluate', 'train')


def per_replica_batch_size(global_batch_size: int, num_replicas: int) -> int:
  """Returns the examples that one replica takes in one step.

  Raises:
    UserError: when the replicas' shares would not be equal; it proposes sizes that are.
  """
  if global_batch_size % num_replicas == 0:
    return global_batch_size // num_replicas
  below = global_batch_size - global_batch_size % num_replicas
  near = [size for size in (below, below + num_replicas) if size > 0]
  raise UserError('--batch_size is over all replicas and must divide evenly by their number',
                  '--batch_size={} over {} replicas'.format(global_batch_size, num_replicas),
                  'the nearest that work are ' + ' and '.join(str(size) for size in near))


def total_train_steps(settings: Settings, num_examples: Optional[int]) -> int:
  """Returns the global step to stop at.

  Epochs follow each other without a break, so only the last step of all can lack examples of the
  epochs asked for; it is filled from the next epoch, as every step takes a whole batch.

  Args:
    settings: one of `train_steps` and `train_epochs` is set.
    num_examples: the examples of an epoch; None where the data set has no end.

  Raises:
    UserError: when epochs of a data set without end are asked for.
  """
  if settings.train_steps is not None:
    return settings.train_steps
  assert settings.train_epochs is not None
  if num_examples is None:
    raise UserError('a data set without end has no epochs',
                    '--dataset={} --train_epochs={}'.format(settings.dataset,
                                                            settings.train_epochs),
                    'give --train_steps instead')
  return math.ceil(settings.train_epochs * num_examples / settings.batch_size)


def lr_warmup_steps(settings: Settings, num_examples: Optional[int]) -> int:
  """Returns the steps over which the learning rate rises to its full value.

  Raises:
    UserError: when they are asked for in epochs of a data set without end.
  """
  if not settings.lr_warmup_epochs:
    return 0
  if num_examples is None:
    raise UserError('a data set without end has no epochs to warm up over',
                    '--dataset={} --lr_warmup_epochs={}'.format(settings.dataset,
                                                                settings.lr_warmup_epochs),
                    'leave --lr_warmup_epochs out')
  return math.ceil(settings.lr_warmup_epochs * num_examples / settings.batch_size)


def scaled_learning_rate(settings: Settings) -> float:
  """Returns the learning rate for the global batch size.

  `--learning_rate` is that of `--base_batch_size`. `linear` keeps the step per example as the batch
  grows (Goyal et al. 2017, arXiv:1706.02677), `sqrt` the variance of the step (Krizhevsky 2014,
  arXiv:1404.5997).
  """
  growth = settings.batch_size / settings.base_batch_size
  return settings.learning_rate * {'none': 1., 'linear': growth, 'sqrt': math.sqrt(growth)}[
      settings.scale_learning_rate]


def to_flagfile(settings: Settings) -> str:
  """Returns every flag's value as a text that `--flagfile` reads; unset ones as comments."""
  lines = []
  for name, value in zip(settings._fields, settings):
    if value is None:
      lines.append('# --{} is not set'.format(name))
    elif isinstance(value, bool):
      lines.append('--{}={}'.format(name, str(value).lower()))
    elif isinstance(value, tuple):
      lines.append('--{}={}'.format(name, ','.join(str(part) for part in value)))
    else:
      lines.append('--{}={}'.format(name, value))
  return '\n'.join(lines) + '\n'


def _check_choices(settings: Settings) -> None:
  for name, choices in (('mode', MODES), ('optimizer', OPTIMIZERS),
                        ('distribution_strategy', STRATEGIES),
                        ('scale_learning_rate', LEARNING_RATE_SCALINGS), ('cache', CACHES),
                        ('all_reduce_alg', ALL_REDUCE_ALGORITHMS)):
    value = getattr(settings, name)
    if value is not None:
      check_choice(name, value, choices)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
  """Raises a UserError when the flag's value is none of the choices."""
  if value not in choices:
    raise UserError('--{} has no such choice'.format(name), '--{}={}'.format(name, value),
                    'choose from ' + ', '.join(choices))


def _check_bounds(settings: Settings) -> None:
  at_least: Iterable[Tuple[int, Sequence[str]]] = (
      (1, ('train_steps', 'train_epochs', 'eval_every_steps', 'batch_size', 'base_batch_size',
           'num_packs',
           'shuffle_buffer', 'prefetch', 'log_every_steps', 'save_checkpoints_steps',
           'save_checkpoints_secs', 'keep_checkpoint_max')),
      (0, ('seed', 'num_cpu_replicas', 'throughput_warmup_steps',
           'inter_op_parallelism_threads', 'intra_op_parallelism_threads')),
      (-1, ('num_gpus',)))
  for bound, names in at_least:
    for name in names:
      value = getattr(settings, name)
      if value is not None and not bound <= value < 2 ** 31:
        raise UserError('--{} is out of range'.format(name), '--{}={}'.format(name, value),
                        'give a whole number from {} to {}'.format(bound, 2 ** 31 - 1))
  if not (settings.learning_rate > 0 and math.isfinite(settings.learning_rate)):
    raise UserError('--learning_rate must be positive and finite',
                    '--learning_rate={}'.format(settings.learning_rate),
                    'give one such as 0.001')
  if not (settings.lr_warmup_epochs >= 0 and math.isfinite(settings.lr_warmup_epochs)):
    raise UserError('--lr_warmup_epochs must be 0 or more, and finite',
                    '--lr_warmup_epochs={}'.format(settings.lr_warmup_epochs),
                    'give one such as 0.5')
  if len(settings.image_size) != 2 or min(settings.image_size) < 1:
    raise UserError('--image_size must be height,width in pixels',
                    '--image_size=' + ','.join(str(side) for side in settings.image_size),
                    'give one such as 28,28')


def _check_places(settings: Settings) -> None:
  if not settings.weights:
    raise UserError('--weights is empty', '--weights=', 'give none, or the path of a file')
  if settings.mode != 'download' and not settings.model_dir:
    raise UserError('--model_dir is required, everything the run makes is kept there',
                    '--mode={} without --model_dir'.format(settings.mode),
                    'give --model_dir=FOLDER')
  for name in ('model_dir', 'data_dir', 'weights', 'model'):
    path = getattr(settings, name)
    if path is not None and ('\n' in path or '\0' in path):
      raise UserError('--{} has a line break or a null character'.format(name), repr(path),
                      'give one without')


def _check_length(settings: Settings) -> None:
  if not settings.trains:
    return
  if settings.train_steps is not None and settings.train_epochs is not None:
    raise UserError('--train_steps and --train_epochs both say how long to train',
                    '--train_steps={} --train_epochs={}'.format(
                        settings.train_steps, settings.train_epochs),
                    'give one of them')
  if settings.train_steps is None and settings.train_epochs is None:
    raise UserError('how long to train is not said', '--mode={}'.format(settings.mode),
                    'give --train_steps=N or --train_epochs=N')


def _check_devices(settings: Settings) -> None:
  if settings.num_cpu_replicas and settings.num_gpus > 0:
    raise UserError('a run is on GPUs or on CPU replicas, not on both',
                    '--num_gpus={} --num_cpu_replicas={}'.format(
                        settings.num_gpus, settings.num_cpu_replicas),
                    'give one of them')
  if settings.distribution_strategy in SINGLE_REPLICA_STRATEGIES:
    for name in ('num_gpus', 'num_cpu_replicas'):
      if getattr(settings, name) > 1:
        raise UserError(
            '--distribution_strategy={} has one replica'.format(settings.distribution_strategy),
            '--{}={}'.format(name, getattr(settings, name)),
            'give --distribution_strategy=mirrored, or leave --{} out'.format(name))


def _check_checkpoints(settings: Settings) -> None:
  steps, secs = settings.save_checkpoints_steps, settings.save_checkpoints_secs
  every = settings.eval_every_steps
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
