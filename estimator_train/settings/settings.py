"""What a run was asked to do, checked: one value a flag, and what follows from them."""

import csv
import io
import math
import os
from fractions import Fraction
from typing import Any, List, NamedTuple, Optional, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.settings import user_code, validation


class _Fields(NamedTuple):
  """The fields of Settings; each is the flag of the same name in flags.py, and is told there."""
  mode: str = 'train_and_evaluate'
  dataset: str = 'fashion_mnist_sample'
  data_dir: Optional[str] = None
  train_pattern: Optional[str] = None
  eval_pattern: Optional[str] = None
  labels: Tuple[str, ...] = ()
  image_size: Optional[Union[Tuple[int, int], Tuple[int, int, int]]] = None
  preprocess: str = 'unit'
  model: str = 'fashion_cnn'
  weights: str = 'none'
  trainable_layers: Optional[int] = None
  model_dir: Optional[str] = None
  export_dir: Optional[str] = None
  export_format: str = 'saved_model'
  train_steps: Optional[int] = None
  train_epochs: Optional[int] = None
  eval_every_steps: Optional[int] = None
  early_stopping_steps: Optional[int] = None
  stop_at_accuracy: Optional[float] = None
  batch_size: int = 128
  optimizer: str = 'adam'
  learning_rate: float = 0.001
  scale_learning_rate: str = 'none'
  base_batch_size: int = 128
  lr_schedule: str = 'constant'
  lr_boundaries_epochs: Tuple[float, ...] = ()
  lr_values: Tuple[float, ...] = ()
  lr_warmup_epochs: float = 0.
  class_weights: str = 'none'
  on_nan: str = 'stop'
  seed: int = 1
  distribution_strategy: str = 'mirrored'
  num_gpus: int = -1
  num_cpu_replicas: int = 0
  all_reduce_alg: Optional[str] = None
  num_packs: int = 1
  gpu_memory_growth: bool = True
  dtype: str = 'fp32'
  enable_xla: bool = False
  inter_op_parallelism_threads: int = 0
  intra_op_parallelism_threads: int = 0
  shuffle_buffer: int = 5000
  num_parallel_calls: int = 0
  prefetch: int = 2
  cache: str = 'auto'
  cache_features: bool = False
  cache_features_dtype: str = 'float32'
  on_bad_image: str = 'error'
  max_bad_images: float = 0.01
  throughput_warmup_steps: int = 10
  trace_steps: Optional[Tuple[int, int]] = None
  log_every_steps: int = 100
  repeats: int = 3
  scale_over: str = 'replicas'
  workload: Optional[str] = None
  report_page: bool = True
  save_checkpoints_steps: Optional[int] = None
  save_checkpoints_secs: Optional[int] = None
  keep_checkpoint_max: int = 5
  save_retry_secs: int = 300
  best_metric: str = 'accuracy'
  checkpoint: str = 'latest'
  peer_timeout_secs: int = 30
  step_timeout_secs: int = 600
  start_timeout_secs: int = 600
  input: Optional[str] = None
  output: str = '-'
  verbosity: int = 0


class Settings(_Fields):
  """Every flag's value, valid by itself and together with the others.

  `Settings(FLAG=VALUE, ...)`; what is left out is as without the flag, and --help explains each.
  `model` and `dataset` may be functions, which are known by their names from then on.

  Raises:
    UserError: when it is made of values that cannot be.
  """
  __slots__ = ()

  def __new__(cls, **values: Any) -> 'Settings':
    settings = super().__new__(cls, **{name: _as_a_flag(value) for name, value in values.items()})
    validation.check(settings)
    return settings

  @property
  def trains(self) -> bool:
    """Whether this run updates weights."""
    return self.mode in ('train_and_evaluate', 'train')

  @property
  def evaluates(self) -> bool:
    """Whether this run evaluates a checkpoint on the test examples."""
    return self.mode in ('train_and_evaluate', 'evaluate')


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


def examples_a_step(settings: Settings, num_workers: int) -> int:
  """Returns the examples of a global step.

  Under parameter servers each worker's step counts as one, and takes that worker's share.
  """
  alone = settings.distribution_strategy == 'parameter_server'
  return settings.batch_size // (num_workers if alone else 1)


def steps_of_epochs(epochs: float, num_examples: int, step_examples: int) -> int:
  """Returns the global step at which so many epochs are through.

  Epochs follow each other without a break, so a step can end one and begin the next.

  Args:
    epochs: taken as the decimal that was written, not as its nearest binary fraction.
    num_examples: of an epoch.
    step_examples: of a global step.
  """
  return math.ceil(Fraction(str(epochs)) * num_examples / step_examples)


def total_train_steps(settings: Settings, num_examples: Optional[int], step_examples: int,
                      first_step: int = 0, examples_seen: int = 0) -> int:
  """Returns the global step to stop at.

  Only the last step of all can lack examples of the epochs asked for; it is filled from the next
  epoch, as every step takes a whole batch.

  Args:
    settings: one of `train_steps` and `train_epochs` is set.
    num_examples: the examples of an epoch; None where the data set has no end.
    step_examples: of a global step.
    first_step: the global step that a resumed run goes on from.
    examples_seen: in the steps before that, which may have had other batch sizes.

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
  examples_left = settings.train_epochs * num_examples - examples_seen
  return first_step + max(math.ceil(examples_left / step_examples), 0)


def growth_of_learning_rate(settings: Settings) -> float:
  """Returns what the global batch size multiplies the learning rates by.

  They are those of `--base_batch_size`. `linear` keeps the step per example as the batch grows
  (Goyal et al. 2017, arXiv:1706.02677), `sqrt` the variance of the step (Krizhevsky 2014,
  arXiv:1404.5997).
  """
  growth = settings.batch_size / settings.base_batch_size
  return {'none': 1., 'linear': growth, 'sqrt': math.sqrt(growth)}[settings.scale_learning_rate]


def to_flagfile(settings: Settings) -> str:
  """Returns every flag's value as a text that `--flagfile` reads; unset ones as comments."""
  lines = []
  for name, value in zip(settings._fields, settings):
    if value is None or value == ():
      lines.append('# --{} is not set'.format(name))
    else:
      lines.append(_argument(name, value))
  return '\n'.join(lines) + '\n'


def to_arguments(settings: Settings) -> List[str]:
  """Returns the command line that the settings are parsed from: the flags off their defaults."""
  return [_argument(name, value) for name, value in zip(settings._fields, settings)
          if value != settings._field_defaults[name]]


def _as_a_flag(value: Any) -> Any:
  """Returns a value as the command line would give it."""
  if callable(value):
    return user_code.name_of(value)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  return tuple(value) if isinstance(value, list) else value


def _argument(name: str, value: Any) -> str:
  if isinstance(value, bool):
    value = str(value).lower()
  elif isinstance(value, tuple):
    row = io.StringIO()
    csv.writer(row, delimiter=':' if name == 'trace_steps' else ',',
               lineterminator='').writerow(value)
    value = row.getvalue()
  return '--{}={}'.format(name, value)
