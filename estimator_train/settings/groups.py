"""The flags, in the groups that `--help` shows. Rules between them are in constraints.py."""

from typing import Optional, Tuple, Union

import attr

from estimator_train.configs.workloads import WORKLOADS
from estimator_train.errors import UserError
from estimator_train.settings import choices
from estimator_train.settings.flag import (
    flag,
    flag_group,
    not_empty,
    satisfies,
    text_of,
    whole_number,
)

# Of numbers of which each costs a thread, a device or a batch in memory.
_MOST = 1000
# Viewers of traces choke on more.
MAX_TRACED_STEPS = 1000
# Beyond these a float32 is 0 or infinite.
_SMALLEST_RATE, _LARGEST_RATE = 1e-37, 1e38
MAX_EPOCHS = 10 ** 6


def _check_traced_steps(name: str, steps: Tuple[int, ...]) -> None:
  given = '--{}={}'.format(name, text_of(steps, ':'))
  if len(steps) != 2:
    raise UserError('--{} must be first:last, two steps'.format(name), given,
                    'give one such as 101:110')
  first, last = steps
  if not 1 <= first <= last < first + MAX_TRACED_STEPS:
    raise UserError('--{} must be first:last, from 1 on and no more than {} steps'.format(
        name, MAX_TRACED_STEPS), given, 'give one such as 101:110')


@flag_group('run')
@attr.s(auto_attribs=True, frozen=True)
class Run:
  mode: str = flag('train_and_evaluate', choices=choices.MODES)
  model_dir: Optional[str] = flag(
      None, 'folder of everything the run makes; a run found there is resumed')
  verbosity: int = flag(0, 'TensorFlow\'s own log and warnings too, where it is 1')

  @property
  def trains(self) -> bool:
    """Whether a run updates weights."""
    return self.mode in choices.TRAINS

  @property
  def evaluates(self) -> bool:
    """Whether a run evaluates a checkpoint on the test examples."""
    return self.mode in ('train_and_evaluate', 'evaluate')


@flag_group('data')
@attr.s(auto_attribs=True, frozen=True)
class Data:
  dataset: str = flag(
      'fashion_mnist_sample', '{names}, or package.module:function, a function that returns an '
      'estimator_train.DataSet', names=choices.DATASETS)
  data_dir: Optional[str] = flag(
      None, 'folder of the data set\'s files; what is missing is downloaded')
  train_pattern: Optional[str] = flag(
      None, 'image files to train on, such as \'DATA/train/**/*.jpeg\'; a file\'s folder is its '
      'class (image_folder)')
  eval_pattern: Optional[str] = flag(None, 'image files to evaluate on (image_folder)')
  labels: Tuple[str, ...] = flag(
      (), 'the classes in the order of the outputs; the folders\' names, sorted, when not given '
      '(image_folder; synthetic: ten)',
      check=satisfies(lambda labels: len(set(labels)) == len(labels) and all(labels),
                      'must be different names', 'name each class once'))
  image_size: Optional[Union[Tuple[int, int], Tuple[int, int, int]]] = flag(
      None, 'height,width in pixels that images get; 224,224 when not given (synthetic: '
      'height,width or height,width,channels; 28,28,1)',
      rule='must be height,width in pixels', remedy='give one such as 28,28')


@flag_group('model')
@attr.s(auto_attribs=True, frozen=True)
class Model:
  model: str = flag(
      'fashion_cnn', '{names}, or package.module:function, a function that returns a Keras model',
      names=choices.MODELS)
  weights: str = flag(
      'none', 'initial weights: none (random), imagenet (downloads), or the path of an .h5 file '
      'or a checkpoint', check=not_empty('give none, or the path of a file'))
  trainable_layers: Optional[int] = flag(
      None, 'the last layers of a pretrained network that train, its head apart; 4 of vgg16 and '
      'all of others when not given', check=whole_number(0))
  preprocess: str = flag('unit', 'pixels to [0, 1], or as ImageNet weights expect them',
                         choices=choices.PREPROCESSINGS)


@flag_group('duration')
@attr.s(auto_attribs=True, frozen=True)
class Duration:
  train_steps: Optional[int] = flag(
      None, 'global step to stop at (scaling: of each run)', check=whole_number(1))
  train_epochs: Optional[int] = flag(
      None, 'passes over the data to stop after', check=whole_number(1))


@flag_group('evaluation')
@attr.s(auto_attribs=True, frozen=True)
class Evaluation:
  eval_every_steps: Optional[int] = flag(
      None, 'evaluate each so many steps, not only at the end', check=whole_number(1))
  early_stopping_steps: Optional[int] = flag(
      None, 'stop when --best_metric has not become better for so many steps',
      check=whole_number(1))
  stop_at_accuracy: Optional[float] = flag(
      None, 'stop once an evaluation reaches it, such as 0.9',
      check=satisfies(lambda share: 0 < share <= 1,
                      'is a share of the test examples, above 0 and up to 1',
                      'give one such as 0.9'))
  best_metric: str = flag(
      'accuracy', 'what makes a checkpoint the best of those that are evaluated',
      choices=choices.BEST_METRICS)


@flag_group('optimizer')
@attr.s(auto_attribs=True, frozen=True)
class Optimizer:
  batch_size: int = flag(
      128, 'examples a step over all replicas (global); of the run of one replica or worker '
      '(scaling)', check=whole_number(1))
  optimizer: str = flag('adam', choices=choices.OPTIMIZERS)
  learning_rate: float = flag(
      .001, 'of the optimizer; where every schedule begins',
      check=satisfies(lambda rate: _SMALLEST_RATE <= rate <= _LARGEST_RATE,
                      'must be positive and finite', 'give one such as 0.001'))
  scale_learning_rate: str = flag('none', 'how it grows with the global batch size',
                                  choices=choices.LEARNING_RATE_SCALINGS)
  base_batch_size: int = flag(
      128, 'the global batch size that --learning_rate and --lr_values are meant for',
      check=whole_number(1))
  lr_schedule: str = flag('constant', 'how the learning rate changes over the steps',
                          choices=choices.LR_SCHEDULES)
  lr_boundaries_epochs: Tuple[float, ...] = flag(
      (), 'epochs, as 3,7, at which the rate changes (piecewise), or the one at which it has '
      'fallen (exponential, cosine; the end of training when not given)',
      check=satisfies(lambda boundaries: all(low < high <= MAX_EPOCHS for low, high in zip(
          (0., *boundaries), boundaries)), 'must be positive and rise', 'give some such as 3,7.5'),
      rule='must be numbers', remedy='give some such as 3,7.5')
  lr_values: Tuple[float, ...] = flag(
      (), 'the rates before, between and after the boundaries, as 1e-3,1e-4,1e-5 (piecewise), or '
      'the one that it falls to (exponential; cosine: 0 when not given)',
      check=satisfies(lambda values: all(0 <= value <= _LARGEST_RATE for value in values),
                      'must be 0 or more, and finite', 'give some such as 1e-3,1e-4'),
      rule='must be numbers', remedy='give some such as 3,7.5')
  lr_warmup_epochs: float = flag(
      0., 'epochs over which the learning rate first rises from 0',
      check=satisfies(lambda epochs: 0 <= epochs <= MAX_EPOCHS,
                      'must be from 0 to {}'.format(MAX_EPOCHS), 'give one such as 0.5'))
  class_weights: str = flag('none', 'balanced: each class counts alike in the training loss',
                            choices=choices.CLASS_WEIGHTS)
  on_nan: str = flag(
      'stop', 'end the run at a loss that is not finite, or go on, as loss scaling leaves out such '
      'a step (--dtype=mixed)', choices=choices.ON_NAN)
  seed: int = flag(1, 'of the initial weights and of the order of the examples',
                   check=whole_number(0))


@flag_group('devices')
@attr.s(auto_attribs=True, frozen=True)
class Devices:
  distribution_strategy: str = flag('mirrored', choices=choices.STRATEGIES)
  num_gpus: int = flag(-1, 'GPUs to use; -1: all there are, 0: none', check=whole_number(-1))
  num_cpu_replicas: int = flag(0, 'replicas on logical CPU devices, where there is no GPU',
                               check=whole_number(0, _MOST))
  all_reduce_alg: Optional[str] = flag(None, 'how gradients are added up over GPUs',
                                       choices=choices.ALL_REDUCE_ALGORITHMS)
  num_packs: int = flag(1, 'parts that the gradients are packed into for the all-reduce',
                        check=whole_number(1))
  gpu_memory_growth: bool = flag(True, 'take GPU memory as needed, not all at once')
  dtype: str = flag(
      'fp32', 'mixed: TensorFlow has parts of the graph compute in float16 on GPUs of compute '
      'capability 7.0 or newer, with dynamic loss scaling', choices=choices.DTYPES)
  enable_xla: bool = flag(False, 'have XLA compile what it can of the graph')
  inter_op_parallelism_threads: int = flag(
      0, 'operations run at once; 0: as many as cores, but one with oneDNN',
      check=whole_number(0, _MOST))
  intra_op_parallelism_threads: int = flag(0, 'threads of an operation; 0: as cores',
                                           check=whole_number(0, _MOST))


@flag_group('cluster')
@attr.s(auto_attribs=True, frozen=True)
class Cluster:
  start_timeout_secs: int = flag(600, 'seconds to wait for all tasks of the cluster to come',
                                 check=whole_number(1))
  peer_timeout_secs: int = flag(
      30, 'seconds without a heartbeat from another task of the cluster after which it is lost, '
      'and the run ends with code 138', check=whole_number(1))
  step_timeout_secs: int = flag(
      600, 'seconds without a step after which a run on a cluster ends with code 138; 0: never',
      check=whole_number(0))


@flag_group('input')
@attr.s(auto_attribs=True, frozen=True)
class Input:
  shuffle_buffer: int = flag(5000, 'examples to shuffle among', check=whole_number(1))
  num_parallel_calls: int = flag(0, 'images decoded at once; 0: as many as cores',
                                 check=whole_number(0, _MOST))
  prefetch: int = flag(2, 'batches prepared ahead', check=whole_number(1, _MOST))
  cache: str = flag(
      'auto', 'keep the training examples, decoded and resized to uint8: none, memory, a folder, '
      'or auto, which is memory for idx files of up to 256 MiB',
      check=not_empty('give {}, or a folder'.format(', '.join(choices.CACHES))))
  cache_features: bool = flag(
      False, 'compute the output of the frozen layers once, and train on that; it is kept in '
      'memory, or in the folder of --cache')
  cache_features_dtype: str = flag('float32', 'how that is kept',
                                   choices=choices.CACHE_FEATURES_DTYPES)
  on_bad_image: str = flag(
      'error', 'stop at an image that cannot be decoded, or train without it',
      choices=choices.ON_BAD_IMAGE)
  max_bad_images: float = flag(
      .01, 'the largest share of images to skip',
      check=satisfies(lambda share: 0 <= share <= 1, 'is a share of all images, from 0 to 1',
                      'give one such as 0.01'))


@flag_group('checkpoints')
@attr.s(auto_attribs=True, frozen=True)
class Checkpoints:
  save_checkpoints_steps: Optional[int] = flag(None, 'steps between checkpoints',
                                               check=whole_number(1))
  save_checkpoints_secs: Optional[int] = flag(
      None, 'seconds between checkpoints (600 when neither this nor steps are given)',
      check=whole_number(1))
  keep_checkpoint_max: int = flag(5, 'checkpoints to keep, besides the best',
                                  check=whole_number(1))
  save_retry_secs: int = flag(
      300, 'seconds to retry saving a checkpoint that cannot be saved, as on a full disk, '
      'before the run ends with code 3; 0: none', check=whole_number(0))
  checkpoint: str = flag(
      'latest', 'the one to evaluate: {}, or the path of any, such as DIR/model.ckpt-500'.format(
          ', '.join(choices.KEPT_CHECKPOINTS)), check=not_empty('give latest, best, or a path'))


@flag_group('reporting')
@attr.s(auto_attribs=True, frozen=True)
class Reporting:
  throughput_warmup_steps: int = flag(10, 'first steps left out of the timing',
                                      check=whole_number(0))
  trace_steps: Optional[Tuple[int, int]] = flag(
      None, 'first:last, global steps to write a Chrome trace of: model_dir/trace.json',
      check=_check_traced_steps, rule='must be first:last, two steps',
      remedy='give one such as 101:110', separator=':')
  log_every_steps: int = flag(
      100, 'steps between two lines of progress; after 10,000 lines twice as many, and again each '
      'time that the steps double', check=whole_number(1))
  report_page: bool = flag(True, 'write the page about the run, model_dir/report/index.html')


@flag_group('experiments')
@attr.s(auto_attribs=True, frozen=True)
class Experiments:
  repeats: int = flag(3, 'times that each point of --mode=scaling is run, in mixed order',
                      check=whole_number(1))
  scale_over: str = flag(
      'replicas', 'what --mode=scaling takes more and more of; workers are processes on cores of '
      'their own', choices=choices.SCALE_OVER)
  workload: Optional[str] = flag(None, 'the published one that --mode=reproduce runs',
                                 choices=tuple(WORKLOADS))


@flag_group('prediction and export')
@attr.s(auto_attribs=True, frozen=True)
class PredictionAndExport:
  input: Optional[str] = flag(
      None, 'what to predict: image files or idx files of images, as a pattern such as '
      '\'DATA/**/*.jpeg\'')
  output: str = flag(
      '-', 'file of the predictions, JSON lines, or CSV where its name ends in .csv; -: standard '
      'output', check=not_empty('give a file, or - for standard output'))
  export_dir: Optional[str] = flag(
      None, 'folder of exported models, a numbered folder each; training exports at its end where '
      'it is given')
  export_format: str = flag('saved_model', choices=choices.EXPORT_FORMATS)
