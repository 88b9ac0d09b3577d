"""Opens the data of a run: chooses the source of each split, checks the files, and counts."""

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from estimator_train import data
from estimator_train.data import DataSet, DataSpec, Split, mixup
from estimator_train.data.arrays import ArraySource, SyntheticSource
from estimator_train.data.batching import NO_IMAGE, Batching
from estimator_train.data.binary_files import BinarySource, IdxSource
from estimator_train.data.image_records import ImageRecordSource
from estimator_train.data.image_source import ImageFileSource, ImageSource
from estimator_train.data.order import UNSHARDED, Shard
from estimator_train.data.parsed_records import ParsedRecordSource
from estimator_train.data.source import BadImage, InputFn, Source
from estimator_train.data.user_examples import ExampleSource
from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.run_dir.data_record import Validation
from estimator_train.settings import Settings
from estimator_train.settings.flags import CACHES, InputFlags

SOURCE_CLASSES: Dict[type, Callable[..., Source]] = {
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
  """The data of a run, which open_data has checked and counted.

  Attributes:
    spec: the class names and the image shape.
    validation: which of the training examples are for validation.
    train: the training examples; None if there are none.
    test: the test examples; None if there are none.
    skipped_images: the images that were removed from the data set because they cannot be decoded;
      empty unless `--on_bad_image=skip`.
  """
  spec: DataSpec
  validation: Optional[Validation]
  train: Optional[Source]
  test: Optional[Source]
  skipped_images: List[BadImage]


def make_source(dataset: DataSet, split: Optional[Split]) -> Source:
  """Returns the source that reads a split."""
  return SOURCE_CLASSES[type(split)](dataset, split)


def make_image_sources(dataset: DataSet, mode: str) -> Dict[str, ImageSource]:
  """Returns the sources by split, `train` and `eval`, for a mode that reads only images.

  Raises:
    UserError: the examples of the data set are not images.
  """
  sources = {}
  for name, split in (('train', dataset.train), ('eval', dataset.test)):
    if split is not None:
      source = make_source(dataset, split)
      if not isinstance(source, ImageSource):
        raise UserError('--mode={} requires a data set of image files or of images in '
                        'TFRecords'.format(mode), '--dataset=' + dataset.name,
                        'give --dataset=image_folder or tfrecord with --train_pattern, or '
                        '--dataset=oct2017')
      sources[name] = source
  return sources


def open_data(dataset: DataSet, settings: Settings, folder: str) -> Data:
  """Removes bad images if requested, and checks and counts the examples that the mode reads.

  Args:
    dataset: the data set, whose files are complete.
    settings: the settings of the run.
    folder: the folder of the run, in which the results are stored for the next run.

  Raises:
    UserError: a file is missing or invalid, the examples of a split cannot be counted, or the
      format does not support the value of `--cache`, `--augment` or `--mixup_alpha`.
  """
  skipped_images: List[BadImage] = []
  if settings.input.on_bad_image == 'skip':
    dataset, skipped_images = skip_bad_examples(dataset, settings.input, folder)
  train, test = (None if split is None else make_source(dataset, split)
                 for split in (dataset.train, dataset.test))
  if train is not None:
    _check_support(train, settings)
  for source, is_read in ((train, settings.run.trains), (test, settings.run.evaluates)):
    if source is not None and is_read:
      source.open(folder)
  return Data(dataset.spec, dataset.validation, train, test, skipped_images)


def skip_bad_examples(dataset: DataSet, flags: InputFlags,
                      folder: str) -> Tuple[DataSet, List[BadImage]]:
  """Removes from a data set the bad images: images that cannot be decoded.

  Args:
    dataset: the data set.
    flags: the input flags of the run.
    folder: the folder in which the list of bad images is stored for the next run.

  Returns:
    The data set without the bad images, and the bad images.

  Raises:
    UserError: the fraction of bad images exceeds `--max_bad_images`, or all training images of a
      class are bad.
  """
  skipped: List[BadImage] = []
  for name in ('train', 'test'):
    split = getattr(dataset, name)
    if split is not None:
      split, bad = make_source(dataset, split).skip_bad_examples(name, flags, folder)
      dataset, skipped = dataset._replace(**{name: split}), skipped + bad
  return dataset, skipped


def _check_support(source: Source, settings: Settings) -> None:
  """Raises a UserError if the training examples do not support a flag of the input."""
  # A value of --cache that is not in CACHES is the path of a folder.
  is_cache_folder = settings.input.cache not in CACHES
  if is_cache_folder and not source.can_cache_in_folder:
    raise UserError('only image files can be cached in a folder',
                    '--cache={} --dataset={}'.format(settings.input.cache, settings.data.dataset),
                    'give --cache=memory, or omit --cache')
  for name, value, default in (('augment', settings.input.augment, 'none'),
                               ('mixup_alpha', settings.input.mixup_alpha, 0.)):
    if value != default and settings.run.trains:
      if not source.can_augment:
        raise UserError('examples of a function and synthetic examples cannot be augmented',
                        '--{}={} --dataset={}'.format(name, value, settings.data.dataset),
                        'omit --{}; a function of a split can augment its examples itself'.format(
                            name))
      source.dataset.require_images('--' + name)
  if settings.input.class_sampling == 'balanced' and settings.run.trains:
    source.dataset.require_classes('--class_sampling=balanced')
    if source.is_sequential and source.is_made_by_user:
      raise UserError('an ExampleSplit can only be read in its own order',
                      '--class_sampling=balanced --dataset=' + settings.data.dataset,
                      'give --class_weights=balanced instead')


def resolve_cache(source: Source, flags: InputFlags) -> str:
  """Returns where the training examples are cached: `memory`, `none` or the path of a folder."""
  return source.default_cache if flags.cache == 'auto' else flags.cache


def make_train_input_fn(source: Source, settings: Settings, batching: Batching) -> InputFn:
  """Makes the `input_fn` of training, which yields (features, labels)."""
  if settings.input.input_pipeline == 'published':
    return source.make_published_input_fn(batching)
  input_fn = source.make_train_input_fn(batching, resolve_cache(source, settings.input))
  alpha = settings.input.mixup_alpha
  return mixup.mix_examples(input_fn, batching, alpha) if alpha else input_fn


def make_batching(spec: DataSpec, settings: Settings, one_hot: bool, examples_per_batch: int,
                  shard: Shard = UNSHARDED) -> Batching:
  """Makes the Batching for the examples of a data set, from the settings of the run."""
  flags = settings.input
  return Batching(
      image_shape=spec.image_shape or NO_IMAGE, num_classes=len(spec.labels),
      one_hot=one_hot, examples_per_batch=examples_per_batch, shuffle_buffer=flags.shuffle_buffer,
      num_parallel_calls=devices.num_parallel_calls(flags), prefetch=flags.prefetch,
      seed=settings.optimizer.seed, shard=shard, augment=flags.augment,
      private_threadpool_size=devices.private_threadpool_size(flags, settings.devices),
      num_queued_calls=devices.num_queued_calls(flags))
