"""Opens the data of a run.

This module makes the source of each split. The only other place that makes a source is
`Source.exclude_bad_images`.
"""

import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from estimator_train import data
from estimator_train.data import DataSet, DataSpec, Role, Split, augmentation, datasets, holdout
from estimator_train.data.arrays import ArraySource, SyntheticSource
from estimator_train.data.bad_images import BadImage
from estimator_train.data.batching import (
  NO_IMAGE_SHAPE,
  BatchSettings,
  OrderSettings,
  PixelSettings,
)
from estimator_train.data.binary_files import BinarySource, IdxSource
from estimator_train.data.download import download_files
from estimator_train.data.image_records import ImageRecordSource
from estimator_train.data.image_source import ImageFileSource, ImageSource
from estimator_train.data.order import UNSHARDED, Shard
from estimator_train.data.source import AnySource, InputFn, Source
from estimator_train.data.user_examples import ExampleSource, ParsedRecordSource
from estimator_train.distribution import devices
from estimator_train.errors import UserError, join_items
from estimator_train.run_dir import RunDir
from estimator_train.run_dir.data_record import Holdout
from estimator_train.settings import Settings, data_folder
from estimator_train.settings.flags import CACHES, InputFlags
from estimator_train.system.formatting import format_number

_LOG = logging.getLogger('estimator_train')
_SOURCE_CLASSES: Dict[type, Callable[[DataSpec, Any, Role], Source]] = {
    data.IdxSplit: IdxSource,
    data.ImageSplit: ImageFileSource,
    data.ImageRecordSplit: ImageRecordSource,
    data.ParsedRecordSplit: ParsedRecordSource,
    data.ExampleSplit: ExampleSource,
    data.ArraySplit: ArraySource,
    data.BinarySplit: BinarySource,
    data.SyntheticSplit: SyntheticSource,
}


class Data(NamedTuple):
  """The data of a run, after open_data has checked the files and counted the examples.

  Attributes:
    validation: the training examples that are held out for validation; None if there are none.
    train, test: None if the mode does not read these examples.
    skipped_images: the images that were removed from the data set, because they cannot be decoded.
      The list is empty unless `--on_bad_image=skip` is given.
  """
  spec: DataSpec
  validation: Optional[Holdout]
  train: Optional[Source]
  test: Optional[Source]
  skipped_images: List[BadImage]


def make_source(split: Split, spec: DataSpec, role: Role) -> Source:
  """Makes the source that reads a split, without reading a file."""
  return _SOURCE_CLASSES[type(split)](spec, split, role)


def open_data(settings: Settings, run_dir: RunDir, checkpoint_run_dir: RunDir,
              is_resumed: bool) -> Data:
  """Finds, downloads, checks and counts the examples that the mode reads.

  Args:
    run_dir: the folder in which slow results are stored for the next run.
    checkpoint_run_dir: the folder of the run that saved the checkpoint.
    is_resumed: whether there is a checkpoint.

  Raises:
    UserError: a file is missing or invalid, the class names differ from those of the checkpoint,
      the examples of a split cannot be counted, or the format does not support a flag value.
  """
  dataset = datasets.describe_data_set(
      settings, run_dir.read_class_names(),
      holdout.find_recorded_holdout(settings, checkpoint_run_dir) if is_resumed else None)
  spec = dataset.spec
  _check_class_names(spec, run_dir, checkpoint_run_dir)
  if dataset.files:
    assert settings.data.data_dir is not None
    download_files(dataset.files, settings.data.data_dir)
  sources = _make_sources(dataset)
  train = sources.get('train')
  trains = settings.run.trains
  if trains and data_folder.is_folder(settings.data.dataset):
    _log_splits_of_folder(settings)
  if train is not None and trains and train.class_indices_are_known:
    _log_class_counts(train, settings)
  run_dir.make()
  skipped_images: List[BadImage] = []
  if settings.input.on_bad_image == 'skip':
    sources, skipped_images = exclude_bad_images(sources, settings.input, run_dir.path)
  train, test = map(sources.get, ('train', 'eval'))
  if train is not None:
    _check_input_flags(train, settings, trains)
  for source, is_read in ((train, trains), (test, settings.run.evaluates)):
    if source is not None and is_read:
      source.open(run_dir.path)
  return Data(spec, dataset.validation, train, test, skipped_images)


def describe_trained_data(settings: Settings, run_dir: RunDir,
                          checkpoint_run_dir: RunDir) -> DataSpec:
  """Describes the data that the run in `checkpoint_run_dir` was trained on, without its splits.

  Raises:
    UserError: the class names are unknown, or differ from those of the checkpoint.
  """
  spec = datasets.describe_spec(settings, run_dir.read_class_names())
  _check_class_names(spec, run_dir, checkpoint_run_dir)
  return spec


def open_examples_to_predict(settings: Settings, run_dir: RunDir) -> Source:
  """Opens the examples for `--mode=predict` that a function of the user makes.

  Raises:
    UserError: there are no examples, or they are invalid.
  """
  source = _make_sources(datasets.describe_examples_to_predict(settings))['eval']
  source.open(run_dir.path)
  return source


def make_image_sources(
    settings: Settings, run_dir: Optional[RunDir]) -> Tuple[DataSpec, Dict[str, ImageSource]]:
  """Makes the sources of a data set of images, without checking the images.

  Args:
    run_dir: None if `--model_dir` is not given.

  Returns:
    The spec, and a dict from `train` and `eval` to the source of the split.

  Raises:
    UserError: the examples of the data set are not images.
  """
  dataset = datasets.describe_data_set(settings, run_dir.read_class_names() if run_dir else ())
  sources = _make_sources(dataset)
  image_sources = {
      name: source for name, source in sources.items() if isinstance(source, ImageSource)}
  if len(image_sources) < len(sources):
    raise UserError('--mode={} requires a data set of image files or of images in '
                    'TFRecords'.format(settings.run.mode), '--dataset=' + dataset.name,
                    'give --dataset=image_folder or tfrecord with --train_pattern, or '
                    '--dataset=oct2017')
  return dataset.spec, image_sources


def exclude_bad_images(sources: Dict[str, AnySource], flags: InputFlags,
                       folder: str) -> Tuple[Dict[str, AnySource], List[BadImage]]:
  """Returns sources that leave out the images that cannot be decoded, and a list of these images.

  Raises:
    UserError: see Source.exclude_bad_images.
  """
  results = {name: source.exclude_bad_images(flags, folder) for name, source in sources.items()}
  return ({name: source for name, (source, _) in results.items()},
          [image for _, skipped in results.values() for image in skipped])


def _make_sources(dataset: DataSet) -> Dict[str, Source]:
  """Returns a dict from `train` and `eval` to the source of the split, if the mode reads it."""
  sources: Dict[str, Source] = {}
  if dataset.train is not None:
    sources['train'] = make_source(dataset.train, dataset.spec, Role.TRAIN)
  if dataset.test is not None:
    sources['eval'] = make_source(
        dataset.test, dataset.spec, Role.TEST_ONLY if dataset.train is None else Role.TEST)
  return sources


def _check_class_names(spec: DataSpec, run_dir: RunDir, checkpoint_run_dir: RunDir) -> None:
  """Raises a UserError if the class names differ from those of the run of the checkpoint."""
  checkpoint_run_dir.check_class_names(
      spec.labels, 'model_dir' if checkpoint_run_dir is run_dir else 'checkpoint')


def _log_splits_of_folder(settings: Settings) -> None:
  flags = settings.data
  evaluation = ', evaluating on {}'.format(flags.eval_pattern) if settings.run.evaluates else ''
  if flags.validation_fraction:
    evaluation = (', evaluating on about {:.3g} % of the images of each class, which are not '
                  'trained on (--validation_fraction={})'.format(
                      100 * flags.validation_fraction, flags.validation_fraction))
  unused = data_folder.find_unused_folders(flags)
  _LOG.info('%s: training on %s%s%s', flags.dataset, flags.train_pattern, evaluation,
            '; not used: ' + join_items(unused) if unused else '')


def _log_class_counts(train: Source, settings: Settings) -> None:
  counts = train.count_examples_by_class()
  min_count = min(filter(None, counts))
  _LOG.info('%s training images: %s%s%s', format_number(sum(counts)),
            join_items(list(map('{} {}'.format, train.spec.labels, counts))),
            '' if max(counts) == min_count else
            '; the largest class has {} times as many as the smallest'.format(
                format_number(max(counts) / min_count)),
            '' if max(counts) < 1.5 * min_count or 'balanced' in (
                settings.optimizer.class_weights, settings.input.class_sampling)
            else ' (--class_weights=balanced compensates for that)')


def _check_input_flags(train: Source, settings: Settings, trains: bool) -> None:
  """Raises a UserError if the training examples do not support the value of an input flag."""
  # If the value of --cache is not in CACHES, it is the path of a folder.
  if settings.input.cache not in CACHES and not train.can_cache_in_folder:
    raise UserError('only image files can be cached in a folder',
                    '--cache={} --dataset={}'.format(settings.input.cache, settings.data.dataset),
                    'give --cache=memory, or omit --cache')
  if not trains:
    return
  for flag, value, default in (('augment', settings.input.augment, 'none'),
                               ('mixup_alpha', settings.input.mixup_alpha, 0.)):
    if value != default:
      if not train.can_augment:
        raise UserError('examples of a function and synthetic examples cannot be augmented',
                        '--{}={} --dataset={}'.format(flag, value, settings.data.dataset),
                        'omit --{}; a function of a split can augment its examples itself'.format(
                            flag))
      train.spec.require_images('--' + flag)
  if settings.input.class_sampling == 'balanced':
    train.spec.require_classes('--class_sampling=balanced')
    if train.is_sequential and train.is_user_defined:
      raise UserError('an ExampleSplit can only be read in its own order',
                      '--class_sampling=balanced --dataset=' + settings.data.dataset,
                      'give --class_weights=balanced instead')


def make_input_settings(source: Source, settings: Settings, one_hot: bool, batch_size: int,
                        shard: Shard = UNSHARDED) -> Tuple[OrderSettings, PixelSettings,
                                                           BatchSettings]:
  """Returns the descriptions of the order, the pixels and the batches of the training examples.

  Args:
    source: the training examples.
    batch_size: the number of examples per step and replica.
  """
  is_balanced = settings.input.class_sampling == 'balanced'
  return (OrderSettings(settings.optimizer.seed, shard, settings.input.shuffle_buffer,
                        source.read_class_indices() if is_balanced else None),
          PixelSettings(source.spec.image_shape or NO_IMAGE_SHAPE, settings.input.augment),
          make_batch_settings(source.spec, settings, one_hot, batch_size))


def make_train_input_fn(source: Source, settings: Settings, order: OrderSettings,
                        pixels: PixelSettings, batch: BatchSettings) -> InputFn:
  """Makes the `input_fn` of training, which yields (features, labels)."""
  if settings.input.input_pipeline == 'published':
    return source.make_published_input_fn(order, pixels, batch)
  input_fn = source.make_train_input_fn(order, pixels, batch,
                                        resolve_cache(source, settings.input))
  alpha = settings.input.mixup_alpha
  if not alpha:
    return input_fn
  return lambda: augmentation.mix_pairs(input_fn(), order, batch, alpha)


def make_eval_input_fn(source: Source, settings: Settings, one_hot: bool,
                       batch_size: int) -> InputFn:
  """Makes the `input_fn` of evaluation: each example once, in the order of the split."""
  return source.make_eval_input_fn(PixelSettings(source.spec.image_shape or NO_IMAGE_SHAPE),
                                   make_batch_settings(source.spec, settings, one_hot, batch_size))


def make_batch_settings(spec: DataSpec, settings: Settings, one_hot: bool,
                        size: int) -> BatchSettings:
  """Describes the batches of `size` examples that the settings of the run require."""
  flags = settings.input
  return BatchSettings(size, len(spec.labels), one_hot, devices.num_parallel_calls(flags),
                       devices.num_queued_calls(flags), flags.prefetch,
                       devices.private_threadpool_size(flags, settings.devices))


def resolve_cache(source: Source, flags: InputFlags) -> str:
  """Returns where the training examples are cached: `memory`, `none` or the path of a folder."""
  if flags.cache != 'auto':
    return flags.cache
  # A part of a cached image has fewer pixels than the same part of the original image.
  is_cropped = set(flags.augment.split(',')) & {'crop', 'crop_flip'}
  return 'none' if is_cropped and isinstance(source, ImageSource) else source.default_cache
