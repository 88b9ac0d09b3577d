"""Declares the flags, in the groups of `--help`, and lists their allowed values.

rules.py has the rules between flags.
"""

import difflib
import re
import unicodedata
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.settings.flag_type import (
  Flag,
  check_no_wildcards,
  condition,
  flag,
  flag_group,
  int_range,
  not_empty,
  number_range,
)
from estimator_train.settings.user_code import is_function_name
from estimator_train.settings.workloads import WORKLOADS

MODES = ('train_and_evaluate', 'train', 'evaluate', 'predict', 'export', 'input_benchmark', 'audit',
         'write_tfrecords', 'download', 'doctor', 'scaling', 'lr_finder', 'reproduce', 'report')
TRAINING_MODES = ('train_and_evaluate', 'train')
# Unless one of these flags is given, training continues the run in --model_dir with its flags. They
# define what is trained on which data, so a command that gives one of them defines a run.
FLAGS_OF_A_NEW_RUN = ('dataset', 'train_pattern', 'eval_pattern', 'validation_fraction', 'labels',
                      'image_size', 'model', 'weights')
# These flags do not change what is computed. They may differ between the tasks of a cluster, and
# when a run is resumed.
OUTPUT_FLAGS = ('hooks', 'json', 'verbosity')
# Without --model_dir, training makes a folder in this one; see run_dir/default_folder.py.
RUNS_FOLDER = 'runs'
MODES_WITHOUT_MODEL_DIR = ('download', 'input_benchmark', 'doctor', 'write_tfrecords')
# These modes read the data of --dataset.
MODES_WITH_DATA = (*TRAINING_MODES, 'evaluate', 'input_benchmark', 'audit', 'write_tfrecords',
                   'scaling', 'lr_finder')
# These modes read all splits whose patterns are given.
MODES_OF_ALL_SPLITS = ('audit', 'write_tfrecords')
DATASETS = ('fashion_mnist_sample', 'fashion_mnist', 'mnist', 'kmnist', 'cifar10', 'cifar100',
            'oct2017', 'image_folder', 'tfrecord', 'synthetic')
# PACKAGE_MODELS are functions in model/networks.py, and KERAS_MODELS in tf.keras.applications.
PACKAGE_MODELS = ('fashion_cnn', 'mnist_conv8', 'mnist_deep', 'mnist_dense', 'mnist_practical',
                  'residual_cnn')
# The value of a Keras model is the --preprocess with which its ImageNet weights were trained.
KERAS_MODELS: Dict[str, str] = {
    **dict.fromkeys(('vgg16', 'vgg19', 'resnet50', 'resnet101', 'resnet152'), 'caffe'),
    **dict.fromkeys(('resnet50v2', 'resnet101v2', 'resnet152v2', 'inceptionv3', 'inceptionresnetv2',
                     'xception', 'mobilenet', 'mobilenetv2'), 'tf'),
    **dict.fromkeys(('densenet121', 'densenet169', 'densenet201'), 'torch'),
    **dict.fromkeys(('nasnetmobile', 'nasnetlarge'), 'tf'),
}
MODELS = (*PACKAGE_MODELS, *KERAS_MODELS)
# The end of the names of Keras's files of ImageNet weights for a network without its top.
_KERAS_WEIGHTS_NAME = re.compile(r'[_-]no[_-]?top\.h5$')
# For each value of --optimizer, a class of Keras or model/optimizers.py, and its arguments. In
# checkpoints, the optimizer has the name of the class, or `name` if it is given.
OPTIMIZERS: Dict[str, Dict[str, Any]] = {
    'adam': {'class': 'Adam'},
    'adamw': {'class': 'AdamW'},
    'sgd': {'class': 'SGD'},
    'momentum': {'class': 'SGD', 'name': 'Momentum', 'momentum': 0.9},
    'rmsprop': {'class': 'RMSprop'},
    'lars': {'class': 'Lars'},
    'lamb': {'class': 'Lamb'},
}
STRATEGIES = ('off', 'one_device', 'mirrored', 'central_storage', 'multi_worker_mirrored',
              'parameter_server', 'horovod')
MULTI_WORKER_STRATEGIES = ('multi_worker_mirrored', 'parameter_server', 'horovod')
ALL_REDUCE_ALGORITHMS = ('nccl', 'ring', 'hierarchical_copy', 'reduction_to_one_device')
# These algorithms work only on one machine.
SINGLE_HOST_ALL_REDUCE = ('hierarchical_copy', 'reduction_to_one_device')
# This algorithm works only between workers.
MULTI_WORKER_ALL_REDUCE = ('ring',)
AUGMENTATIONS = ('flip', 'crop', 'pad_crop', 'color', 'rotate', 'cutout')
CACHES = ('auto', 'none', 'memory')  # Any other value is the path of a folder.
NAMED_CHECKPOINTS = ('latest', 'best')  # Any other value of --checkpoint is a path.
MODES_WITH_CHECKPOINT_FLAG = ('evaluate', 'predict', 'export')
# These strategies have one replica in each process.
SINGLE_REPLICA_STRATEGIES = ('off', 'one_device', 'horovod')
# The largest number of threads, CPU replicas or prefetched batches that a flag accepts.
_MAX_COUNT = 1000
# The maximum number of steps in a trace, because trace viewers cannot show more.
MAX_TRACED_STEPS = 1000
# Learning rates outside of this range could become 0 or infinite when converted to float32.
_MIN_LEARNING_RATE, _MAX_LEARNING_RATE = 1e-37, 1e38
MAX_EPOCHS = 10 ** 6
IMAGE_SIZE_REMEDY = ('give a size such as 28,28 or, with --dataset=tfrecord or synthetic, such as '
                     '28,28,1')
WINDOWS_PATH = re.compile(r'[A-Za-z]:[\\/]')
WINDOWS_PATH_REMEDY = 'give a path of this system, such as /mnt/c/photos for C:\\photos'
DEFAULT_SAVE_SECS = 600
# The --validation_fraction of a --dataset=FOLDER without a folder for validation.
FOLDER_VALIDATION_FRACTION = .2


def _check_traced_steps(flag: Flag, steps: Tuple[int, ...]) -> None:
  rule = ''
  if len(steps) != 2:
    rule = 'two steps'
  elif not 1 <= steps[0] <= steps[1] < steps[0] + MAX_TRACED_STEPS:
    rule = 'starting from 1, at most {} steps'.format(MAX_TRACED_STEPS)
  if rule:
    raise UserError('--{} must be first:last, {}'.format(flag.name, rule), flag.to_argument(steps),
                    'give steps such as 101:110')


def _check_checkpoint(flag: Flag, checkpoint: str) -> None:
  not_empty('give latest, best, or a path')(flag, checkpoint)
  check_no_wildcards(flag, checkpoint)


def _check_model_dir(flag: Flag, path: str) -> None:
  not_empty('give a folder, or omit it')(flag, path)
  check_no_wildcards(flag, path)


def _check_augment(flag: Flag, value: str) -> None:
  names = value.replace('crop_flip', 'crop,flip').split(',')
  if value != 'none' and not (set(names) <= set(AUGMENTATIONS)
                              and len(set(names)) == len(names)):
    unknown = [name for name in value.split(',') if name not in AUGMENTATIONS]
    nearest = difflib.get_close_matches((unknown or [''])[0], AUGMENTATIONS, 1)
    raise UserError('--{} takes names of augmentations, each once'.format(flag.name),
                    flag.to_argument(value), '{}give none, crop_flip, or some of {}'.format(
                        ''.join(map('did you mean {}? '.format, nearest)),
                        ','.join(AUGMENTATIONS)))


def _check_weights(flag: Flag, path: str) -> None:
  not_empty('give none, or the path of a file')(flag, path)
  if not path.endswith('.h5'):
    check_no_wildcards(flag, path)


def to_nfc(name: str) -> str:
  """Returns a class name in the Unicode form NFC. Names that look the same have the same NFC."""
  return unicodedata.normalize('NFC', name)


def are_distinct(names: Sequence[str]) -> bool:
  """Returns whether all class names look different; see to_nfc."""
  return len(set(map(to_nfc, names))) == len(names)


@flag_group('run')
class RunFlags:
  mode: str = flag('train_and_evaluate', 'what to do', choices=MODES)
  model_dir: Optional[str] = flag(
      None, 'folder for everything that the run writes; if the folder already contains a run, that '
      'run is resumed; if not given, training uses runs/DATASET-MODEL: the same command resumes, '
      'another command gets the next number, such as runs/DATASET-MODEL-2',
      check=_check_model_dir, is_path=True)
  verbosity: int = flag(0, '1: also show debug messages, tracebacks, and the log and warnings of '
                        'TensorFlow')

  @property
  def required_model_dir(self) -> str:
    """`model_dir`, in a mode in which it is not None."""
    assert self.model_dir is not None
    return self.model_dir

  @property
  def trains(self) -> bool:
    return self.mode in TRAINING_MODES

  @property
  def evaluates(self) -> bool:
    """Whether the mode evaluates checkpoints on the test examples."""
    return self.mode in ('train_and_evaluate', 'evaluate')


@flag_group('data')
class DataFlags:
  dataset: str = flag(
      'fashion_mnist_sample', '{names}; a folder of images or TFRecord files, such as ./photos, '
      'with the folders train and val or test, or with a folder per class; or '
      'package.module:function, a function that returns an estimator_train.DataSet',
      built_in_names=DATASETS, accepts_folder=True, is_path=True, check=condition(
          lambda dataset: not WINDOWS_PATH.match(dataset) or '/' in dataset,
          'must not be a path of Windows', WINDOWS_PATH_REMEDY))
  data_dir: Optional[str] = flag(
      None, 'folder of the files of the data set; missing files are downloaded (oct2017: only by '
      '--mode=download)', is_path=True)
  train_pattern: Optional[str] = flag(
      None, 'files to train on: a folder, a pattern, or several, separated by commas; with '
      '--dataset=image_folder, such as DATA/train or \'DATA/train/**/*.jpeg\', where the class of '
      'a file is the name of its folder; with --dataset=tfrecord, such as \'DATA/train-*-of-*\'',
      is_path=True)
  eval_pattern: Optional[str] = flag(
      None, 'files to evaluate on, like --train_pattern', is_path=True)
  validation_fraction: Optional[float] = flag(
      None, 'instead of --eval_pattern: fraction of the examples of --train_pattern to evaluate '
      'on, and not to train on; --seed and the name of a file choose them when a run begins, and '
      'the run keeps them (default for a folder without val and test: {})'.format(
          FOLDER_VALIDATION_FRACTION), check=condition(
          lambda fraction: 0 < fraction < 1, 'must be between 0 and 1',
          'give a fraction such as 0.2'))
  labels: Tuple[str, ...] = flag(
      (), 'with --dataset=image_folder, tfrecord or synthetic: class names, in the order of the '
      'model\'s outputs; if not given, the sorted names of the folders (tfrecord: the lines of '
      'labels.txt next to the files; synthetic: ten classes)',
      check=condition(lambda labels: are_distinct(labels) and all(labels),
                      'must be different names, none of them empty', 'name each class once'))
  image_size: Optional[Union[Tuple[int, int], Tuple[int, int, int]]] = flag(
      None, 'with --dataset=image_folder or oct2017: height,width in pixels to which images are '
      'resized, or one number for a square, 224,224 if not given; tfrecord: '
      'height,width[,channels], 224,224,3 if not given; synthetic: height,width[,channels], '
      '28,28,1 if not given',
      check=condition(lambda size: len(size) in (2, 3) and all(0 < side < 2 ** 15 for side in size),
                      'must be height,width in pixels', IMAGE_SIZE_REMEDY),
      item_rule_and_remedy=('must be height,width in pixels', IMAGE_SIZE_REMEDY),
      accepts_square=True,
      folder_default=(64, 64))
  image_key: str = flag('image/encoded', 'with --dataset=tfrecord: key of the encoded image',
                        check=not_empty('give a key'))
  label_key: str = flag('image/class/label', 'with --dataset=tfrecord: key of the integer label',
                        check=not_empty('give a key'))
  label_offset: int = flag(0, 'with --dataset=tfrecord: number to add to a label to get the class '
                           'index, such as -1 where 0 is a background class')
  compression: str = flag('auto', 'with --dataset=tfrecord: compression of the files; auto: '
                          'detected from their content', choices=('auto', 'none', 'gzip', 'zlib'))


@flag_group('model')
class ModelFlags:
  model: str = flag(
      'fashion_cnn', '{names}, or package.module:function, a function that returns a Keras model',
      built_in_names=MODELS, folder_default='residual_cnn')
  weights: str = flag(
      'none', 'initial weights: none (random), imagenet (downloaded), or the path of an .h5 file, '
      'a SavedModel, a checkpoint or a model_dir; layers without saved weights of their name and '
      'shapes start from random weights', check=_check_weights, is_path=True)
  trainable_layers: Optional[int] = flag(
      None, 'number of layers at the end of a pretrained network that are trained in addition to '
      'the new head; if not given, 4 for vgg16 and all for other networks', check=int_range(0))
  preprocess: str = flag(
      'auto', 'scaling of pixel values, to [0, 1] (unit) or as ImageNet weights require it (caffe, '
      'torch, tf); auto: as --weights require it, which is unit for random weights',
      choices=('auto', 'unit', 'caffe', 'torch', 'tf'))

  @property
  def imagenet_preprocess(self) -> Optional[str]:
    """The `--preprocess` with which the weights were trained on ImageNet; None for others."""
    are_from_imagenet = self.weights == 'imagenet' or _KERAS_WEIGHTS_NAME.search(self.weights)
    return KERAS_MODELS.get(self.model) if are_from_imagenet else None

  @property
  def chosen_preprocess(self) -> str:
    """The value of `--preprocess`, or the one that `auto` stands for in a new run."""
    return self.preprocess if self.preprocess != 'auto' else self.imagenet_preprocess or 'unit'


@flag_group('duration')
class DurationFlags:
  train_steps: Optional[int] = flag(
      None, 'global step at which training stops (--mode=scaling: in each run of the sweep; '
      '--mode=lr_finder: 100 if not given)', check=int_range(1))
  train_epochs: Optional[int] = flag(
      None, 'number of epochs after which training stops', check=int_range(1), folder_default=30)


@flag_group('evaluation')
class EvaluationFlags:
  eval_every_epochs: Optional[int] = flag(
      None, 'epochs between evaluations; 0: evaluate only at the end; if neither this flag nor '
      '--eval_every_steps is given, 1 or, for infinite training data, 0', check=int_range(0))
  eval_every_steps: Optional[int] = flag(
      None, 'steps between evaluations, instead of --eval_every_epochs', check=int_range(1))
  early_stopping_epochs: Optional[int] = flag(
      None, 'stop when --best_metric has not improved for this many epochs', check=int_range(1))
  early_stopping_steps: Optional[int] = flag(
      None, 'stop when --best_metric has not improved for this many steps',
      check=int_range(1))
  stop_at_accuracy: Optional[float] = flag(
      None, 'stop when an evaluation reaches this accuracy, such as 0.9',
      check=condition(lambda accuracy: 0 < accuracy <= 1, 'must be above 0 and at most 1',
                      'give an accuracy such as 0.9'))
  best_metric: Optional[str] = flag(
      None, 'metric by which the best of the evaluated checkpoints is chosen: accuracy, loss, '
      'average_loss, or a metric with which the model is compiled; if not given, accuracy or, '
      'without classes, average_loss', check=not_empty('give a metric, or omit it'))
  best_mode: str = flag(
      'auto', 'whether larger or smaller values of --best_metric are better; auto: the name of the '
      'metric decides', choices=('auto', 'max', 'min'))

  @property
  def may_stop_training(self) -> bool:
    """Whether an evaluation may stop the training before its last step."""
    return not (self.early_stopping_epochs is None and self.early_stopping_steps is None
                and self.stop_at_accuracy is None)


@flag_group('optimizer')
class OptimizerFlags:
  batch_size: int = flag(
      128, 'global batch size, which is the number of examples per step over all replicas '
      '(--mode=scaling: in the runs with a single replica or worker)', check=int_range(1),
      folder_default=16)
  optimizer: str = flag('adam', 'optimizer, unless --model returns a compiled model',
                        choices=tuple(OPTIMIZERS))
  learning_rate: float = flag(
      .001, 'learning rate of the optimizer; after the warm-up, schedules start from this rate',
      check=condition(lambda rate: _MIN_LEARNING_RATE <= rate <= _MAX_LEARNING_RATE,
                      'must be positive and finite', 'give a rate such as 0.001'))
  scale_learning_rate: str = flag('none', 'how the learning rate grows with the global batch size',
                                  choices=('none', 'linear', 'sqrt'))
  base_batch_size: int = flag(
      128, 'global batch size for which --learning_rate and --lr_values are given',
      check=int_range(1))
  lr_schedule: str = flag('constant', 'how the learning rate changes during training',
                          choices=('constant', 'piecewise', 'exponential', 'cosine'),
                          folder_default='cosine')
  lr_boundaries_epochs: Tuple[float, ...] = flag(
      (), 'piecewise: epochs at which the learning rate changes, such as 3,7; exponential and '
      'cosine: the epoch at which the decay ends (the end of training if not given)',
      check=condition(lambda boundaries: all(low < high <= MAX_EPOCHS for low, high in zip(
          (0., *boundaries), boundaries)), 'must be positive and increasing',
                      'give epochs such as 3,7.5'),
      item_rule_and_remedy=('must be numbers', 'give epochs such as 3,7.5'))
  lr_values: Tuple[float, ...] = flag(
      (), 'piecewise: learning rates before, between and after the boundaries, such as '
      '1e-3,1e-4,1e-5; exponential and cosine: the final learning rate (cosine: 0 if not given)',
      check=condition(lambda values: all(0 <= value <= _MAX_LEARNING_RATE for value in values),
                      'must be 0 or more, and finite', 'give rates such as 1e-3,1e-4'),
      item_rule_and_remedy=('must be numbers', 'give rates such as 1e-3,1e-4'))
  lr_warmup_epochs: float = flag(
      0., 'number of epochs over which the learning rate warms up; over n steps, the rate '
      'increases linearly from 1/n of the full rate',
      check=number_range(0, MAX_EPOCHS, 'give a number such as 0.5'))
  backbone_lr_factor: float = flag(
      1., 'fine-tuning: factor of the learning rate of all layers but the last with weights, '
      'such as 0.1',
      check=condition(lambda factor: 0 < factor <= 1, 'must be above 0 and at most 1',
                      'give a factor such as 0.1'))
  gradient_clip_norm: float = flag(
      0., 'largest global norm of the gradients, to which larger gradients are scaled down; 0: no '
      'limit', check=number_range(0, 10 ** 6, 'give a norm such as 1'))
  gradient_accumulation_steps: int = flag(
      1, 'number of equal parts of the batch whose gradients each replica computes one after the '
      'other, which needs less memory; --batch_size is still the number of examples per step',
      check=int_range(1))
  ema_decay: Optional[float] = flag(
      None, 'decay of a moving average of the weights, such as 0.999, with which the model is '
      'evaluated, predicts and is exported; if not given, there is no average',
      check=condition(lambda decay: 0 < decay < 1, 'must be between 0 and 1',
                      'give a decay such as 0.999'))
  weight_decay: float = flag(
      0., 'the training loss contains this factor times half of the sum of the squared kernels; '
      'adamw, lars and lamb decay the weights themselves, as in their papers',
      check=number_range(0, 10 ** 6, 'give a factor such as 1e-4'))
  label_smoothing: float = flag(
      0., 'fraction of each training label that is distributed equally over all classes',
      check=condition(lambda fraction: 0 <= fraction < 1, 'must be at least 0 and below 1',
                      'give a fraction such as 0.1'))
  class_weights: str = flag(
      'none', 'balanced: each class has the same total weight in the training loss',
      choices=('none', 'balanced'))
  on_nan: str = flag(
      'stop', 'if the loss is not finite, stop the run or, only with --dtype=mixed, skip the '
      'update', choices=('stop', 'skip'))
  seed: int = flag(1, 'seed of the initial weights and of the order of the examples',
                   check=int_range(0))


@flag_group('devices')
class DeviceFlags:
  distribution_strategy: str = flag('mirrored', 'how training is distributed over devices',
                                    choices=STRATEGIES)
  num_gpus: int = flag(-1, 'number of GPUs to use; -1: all, 0: none', check=int_range(-1))
  num_cpu_replicas: int = flag(0, 'number of replicas on logical CPU devices, without GPUs',
                               check=int_range(0, _MAX_COUNT))
  all_reduce_alg: Optional[str] = flag(None, 'algorithm that sums the gradients of the replicas',
                                       choices=ALL_REDUCE_ALGORITHMS)
  num_packs: int = flag(1, 'number of packs that the gradients are split into for the all-reduce',
                        check=int_range(1))
  gpu_memory_growth: bool = flag(True, 'allocate GPU memory as needed instead of all at the start')
  dtype: str = flag(
      'fp32', 'mixed: TensorFlow computes parts of the graph in float16, on GPUs of compute '
      'capability 7.0 or newer, with dynamic loss scaling', choices=('fp32', 'mixed'))
  enable_xla: bool = flag(False, 'compile the parts of the graph that XLA supports')
  inter_op_parallelism_threads: int = flag(
      0, 'number of operations that run in parallel; 0: the number of cores, or 1 with oneDNN',
      check=int_range(0, _MAX_COUNT))
  intra_op_parallelism_threads: int = flag(
      0, 'number of threads per operation; 0: the number of cores', check=int_range(0, _MAX_COUNT))


@flag_group('cluster')
class ClusterFlags:
  start_timeout_secs: int = flag(600, 'seconds to wait until all tasks of the cluster have started',
                                 check=int_range(1))
  peer_timeout_secs: int = flag(
      30, 'if another task of the cluster sends no heartbeat for this many seconds, the task '
      'counts as lost, and the run ends with exit code 138', check=int_range(1))
  step_timeout_secs: int = flag(
      600, 'if a step, creating the session, or a batch of an evaluation takes more seconds than '
      'this, or if an export neither computes nor reads or writes files for so long, the run ends '
      'with exit code 138, in a cluster or a single process; 0: no limit', check=int_range(0))


@flag_group('input')
class InputFlags:
  input_pipeline: str = flag(
      'exact', 'published: the stages of 2018 (list_files, interleave, shuffle_and_repeat, '
      'map_and_batch), which cannot resume at the next example', choices=('exact', 'published'))
  augment: str = flag(
      'none', 'random changes of the training images, separated by commas, in the order of their '
      'application: flip (horizontally), crop (8 to 100 % of the area, resized), pad_crop (shift '
      'by up to 4 pixels), color (brightness, contrast, saturation), rotate (up to 15 degrees), '
      'cutout (a square of the mean color); crop_flip is crop,flip', check=_check_augment,
      folder_default='flip')
  mixup_alpha: float = flag(
      0., 'mixup: parameter of the beta distribution of the weights with which pairs of training '
      'images and their labels are mixed, such as 0.2; 0: they are not mixed',
      check=number_range(0, 100, 'give a number such as 0.2'))
  class_sampling: str = flag(
      'natural', 'balanced: each epoch has equally many training examples of each class',
      choices=('natural', 'balanced'))
  shuffle_buffer: int = flag(
      5000, 'number of examples in the shuffle buffer, for idx files, an ExampleSplit and '
      '--input_pipeline=published; other data is shuffled completely', check=int_range(1))
  num_parallel_calls: int = flag(
      0, 'number of images decoded in parallel; 0: the number of cores',
      check=int_range(0, _MAX_COUNT))
  prefetch: int = flag(2, 'number of batches prepared ahead', check=int_range(1, _MAX_COUNT))
  cache: str = flag(
      'auto', 'where decoded and resized training examples are kept as uint8: none, memory, a '
      'folder, or auto (memory for up to 256 MiB of idx files or of the images in '
      '--dataset=FOLDER, otherwise none)',
      check=not_empty('give {}, or a folder'.format(', '.join(CACHES))), is_path=True)
  cache_features: bool = flag(
      False, 'compute the output of the frozen layers once, keep the output in memory or in the '
      'folder of --cache, and train the other layers on the output')
  cache_features_dtype: str = flag('float32', 'dtype of the features of --cache_features',
                                   choices=('float32', 'float16'))
  on_bad_image: str = flag(
      'error', 'stop at an image that cannot be decoded, or skip it',
      choices=('error', 'skip'))
  max_bad_images: float = flag(
      .01, 'largest fraction of the images that --on_bad_image=skip may skip',
      check=number_range(0, 1, 'give a fraction such as 0.01'))


@flag_group('checkpoints')
class CheckpointFlags:
  save_checkpoints_steps: Optional[int] = flag(None, 'steps between checkpoints',
                                               check=int_range(1))
  save_checkpoints_secs: Optional[int] = flag(
      None, 'seconds between checkpoints; {} if --save_checkpoints_steps is not given '
      'either'.format(DEFAULT_SAVE_SECS), check=int_range(1))
  keep_checkpoint_max: int = flag(
      5, 'number of recent checkpoints to keep, in addition to the best one', check=int_range(1))
  save_retry_secs: int = flag(
      300, 'seconds for which a failed save is retried, for example on a full disk, before the run '
      'ends with exit code 3; 0: no retry', check=int_range(0))
  checkpoint: str = flag(
      'latest', 'checkpoint to evaluate, predict with or export: {}, or a path such as '
      'DIR/model.ckpt-500'.format(', '.join(NAMED_CHECKPOINTS)),
      check=_check_checkpoint, is_path=True)


@flag_group('reporting')
class ReportingFlags:
  throughput_warmup_steps: int = flag(10, 'number of steps at the start that are not timed',
                                      check=int_range(0))
  trace_steps: Optional[Tuple[int, int]] = flag(
      None, 'first:last, the global steps to record as a Chrome trace, model_dir/trace.json',
      check=_check_traced_steps, separator=':',
      item_rule_and_remedy=('must be first:last, two steps', 'give steps such as 101:110'))
  log_every_steps: int = flag(
      100, 'steps between progress lines; this interval doubles after 10,000 lines, and again each '
      'time the global step doubles', check=int_range(1))
  hooks: Optional[str] = flag(
      None, 'package.module:function, a function that returns a list of SessionRunHooks, such as '
      'loggers of your own', check=condition(is_function_name, 'must name a function',
                                             'give package.module:function'))
  report_page: bool = flag(True, 'write the report page, model_dir/report/index.html')
  json: bool = flag(False, 'print the result as JSON on a terminal, too, not only elsewhere')
  runs: Tuple[str, ...] = flag((), 'folders of runs that --mode=report shows or compares',
                               is_path=True)


@flag_group('experiments')
class ExperimentFlags:
  repeats: int = flag(3, 'number of runs of --mode=scaling for each number of replicas or workers, '
                      'in random order', check=int_range(1))
  scale_over: str = flag(
      'replicas', 'whether --mode=scaling varies the number of replicas or of workers; each worker '
      'is a process with its own GPUs or cores', choices=('replicas', 'workers'))
  workload: Optional[str] = flag(None, 'published workload that --mode=reproduce runs',
                                 choices=tuple(WORKLOADS))


@flag_group('prediction and export')
class ExportFlags:
  input: Optional[str] = flag(
      None, 'files to predict: a folder, a pattern such as \'DATA/**/*.jpeg\', or several, '
      'separated by commas; image files, idx files of images, or TFRecord files; for a model '
      'without images, rows of its named inputs in .csv or .jsonl files, or TFRecord files; if not '
      'given, the test examples of such a data set', is_path=True)
  output: str = flag(
      '-', 'file for the predictions, as JSON lines, or as CSV if its name ends in .csv; '
      '-: standard output; with --mode=write_tfrecords, the folder for the TFRecord files',
      check=not_empty('give a file, or - for standard output'), is_path=True)
  num_shards: Optional[int] = flag(
      None, 'number of TFRecord files per split that --mode=write_tfrecords writes; if not given, '
      'files of about 128 MiB', check=int_range(1))
  export_dir: Optional[str] = flag(
      None, 'folder for exported models, each in a numbered subfolder; if given, training ends '
      'with an export; if not given, --mode=export uses MODEL_DIR/export/FORMAT',
      check=check_no_wildcards, is_path=True)
  export_format: str = flag('saved_model', 'format of the exported model',
                            choices=('saved_model', 'h5', 'tflite', 'onnx'))
  export_input: Optional[str] = flag(
      None, 'input of the exported model: uint8 images of any size, which it resizes and scales '
      'itself, or the tensor that the network takes; if not given, pictures where the format can',
      choices=('pictures', 'tensor'))
