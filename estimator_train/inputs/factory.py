"""Chooses the source of a split, checks the files of a run, and makes the `input_fn`s."""

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_train.datasets.description import (
  ArraySplit,
  DataSet,
  ExampleSplit,
  IdxSplit,
  ImageRecordSplit,
  ImageSplit,
  ParsedRecordSplit,
  Split,
  SyntheticSplit,
)
from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.inputs import arrays
from estimator_train.inputs.arrays import ArraySource, SyntheticSource
from estimator_train.inputs.batching import NO_IMAGE, UNSHARDED, Batching, Shard
from estimator_train.inputs.idx_files import IdxSource
from estimator_train.inputs.image_files import ImageFileSource
from estimator_train.inputs.image_records import ImageRecordSource
from estimator_train.inputs.parsed_records import ParsedRecordSource
from estimator_train.inputs.source import BadImage, InputFn, Source
from estimator_train.inputs.user_datasets import ExampleSource
from estimator_train.settings import Settings, choices, groups

SOURCE_CLASSES: Dict[type, Callable[..., Source]] = {
    IdxSplit: IdxSource,
    ImageSplit: ImageFileSource,
    ImageRecordSplit: ImageRecordSource,
    ParsedRecordSplit: ParsedRecordSource,
    ExampleSplit: ExampleSource,
    ArraySplit: ArraySource,
    SyntheticSplit: SyntheticSource,
}


class SplitSizes(NamedTuple):
  """The number of examples per split; None for a split that is infinite or is not read."""
  train: Optional[int]
  test: Optional[int]


class SingleEpoch(NamedTuple):
  """One epoch of the training examples, not shuffled.

  Attributes:
    num_examples: the number of examples.
    cache_key: a fingerprint of the examples; see Source.cache_key.
    make_input_fn: takes the number of examples per batch, and makes an `input_fn`.
  """
  num_examples: int
  cache_key: str
  make_input_fn: Callable[[int], InputFn]


def make_source(dataset: DataSet, split: Optional[Split]) -> Source:
  """Returns the source that reads a split.

  Raises:
    ValueError: no source is implemented for the type of the split.
  """
  if type(split) not in SOURCE_CLASSES:
    raise ValueError('no source is implemented for {}'.format(type(split).__name__))
  return SOURCE_CLASSES[type(split)](dataset, split)


def skip_bad_examples(dataset: DataSet, settings: groups.Input,
                      model_dir: str) -> Tuple[DataSet, List[BadImage]]:
  """Removes from a data set the bad images: images that cannot be decoded.

  Args:
    dataset: the data set.
    settings: the input flags of the run.
    model_dir: the folder in which the list of bad images is stored for the next run.

  Returns:
    The data set without the bad images, and the bad images.

  Raises:
    UserError: the fraction of bad images exceeds `--max_bad_images`, or all training images of a
      class are bad.
  """
  skipped: List[BadImage] = []

  def remove_bad(split_name: str, split: Optional[Split]) -> Optional[Split]:
    if split is None:
      return None
    split, bad = make_source(dataset, split).skip_bad_examples(split_name, settings, model_dir)
    skipped.extend(bad)
    return split

  return dataset._replace(train=remove_bad('train', dataset.train),
                          test=remove_bad('test', dataset.test)), skipped


def count_examples(dataset: DataSet, settings: Settings) -> DataSet:
  """Returns the data set with the numbers of examples of the splits that the mode reads.

  Raises:
    UserError: the examples of a split cannot be counted.
  """
  def count(split: Optional[Split], is_read: bool) -> Optional[Split]:
    if split is None or not is_read:
      return split
    counted: Split = make_source(dataset, split).with_count(settings.model_dir)
    return counted

  return dataset._replace(train=count(dataset.train, settings.trains),
                          test=count(dataset.test, settings.evaluates))


def check_files(dataset: DataSet, settings: Settings) -> SplitSizes:
  """Runs quick checks of the files that a run reads, and counts the examples.

  Raises:
    UserError: a file is missing or invalid, or the format does not support the value of `--cache`
      or `--augment`.
  """
  is_cache_folder = settings.cache not in choices.CACHES  # Any other value is a folder's path.
  if is_cache_folder and dataset.train is not None and (
      not make_source(dataset, dataset.train).can_cache_in_folder):
    raise UserError('only image files can be cached in a folder',
                    '--cache={} --dataset={}'.format(settings.cache, settings.dataset),
                    'give --cache=memory, or omit --cache')
  if settings.augment != 'none' and settings.trains and (
      not make_source(dataset, dataset.train).can_augment):
    raise UserError('only image files and images in TFRecord files can be augmented',
                    '--augment={} --dataset={}'.format(settings.augment, settings.dataset),
                    'omit --augment; a function of a split can augment its examples itself')
  return SplitSizes(
      make_source(dataset, dataset.train).check_and_count() if settings.trains else None,
      make_source(dataset, dataset.test).check_and_count() if settings.evaluates else None)


def resolve_cache(dataset: DataSet, settings: groups.Input) -> str:
  """Returns where the training examples are cached: `memory`, `none` or the path of a folder."""
  if settings.cache != 'auto':
    return settings.cache
  return make_source(dataset, dataset.train).default_cache


def class_counts(dataset: DataSet) -> List[int]:
  """Returns the number of training examples per class; raises a UserError for infinite data."""
  return np.bincount(make_source(dataset, dataset.train).class_indices(),
                     minlength=len(dataset.labels)).tolist()


def make_train_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                        examples_per_batch: int, shard: Shard = UNSHARDED) -> InputFn:
  """Makes the `input_fn` of training, which yields (features, labels).

  Args:
    dataset: the data set.
    settings: the settings of the run.
    one_hot: whether labels are one-hot vectors instead of class indices.
    examples_per_batch: the batch size per replica.
    shard: the examples that this worker reads.
  """
  return make_train_input_fn_of(make_source(dataset, dataset.train), settings, make_batching(
      dataset, settings, one_hot, examples_per_batch, shard))


def make_train_input_fn_of(source: Source, settings: Settings, batching: Batching) -> InputFn:
  """Like make_train_input_fn, for a source of training examples."""
  if settings.input_pipeline == 'published':
    return source.make_published_input_fn(batching)
  return source.make_train_input_fn(batching, resolve_cache(source.dataset, settings[groups.Input]))


def make_feature_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                          examples_per_batch: int, shard: Shard,
                          features: np.ndarray) -> InputFn:
  """Like make_train_input_fn, but with the cached features of each image instead of the pixels.

  Args:
    dataset, settings, one_hot, examples_per_batch, shard: as in make_train_input_fn.
    features: the outputs of the frozen layers for all images, [N, ...], in the order of the
      examples of make_single_epoch.
  """
  source = make_source(dataset, dataset.train)
  batching = make_batching(dataset, settings, one_hot, examples_per_batch, shard)
  return arrays.make_train_input_fn(source, features, source.class_indices(), batching)


def make_eval_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                       examples_per_batch: int) -> InputFn:
  """Makes the `input_fn` of evaluation: each test example once."""
  return make_source(dataset, dataset.test).make_eval_input_fn(
      make_batching(dataset, settings, one_hot, examples_per_batch))


def make_single_epoch(dataset: DataSet, settings: Settings) -> SingleEpoch:
  """Returns one epoch of the training examples; raises a UserError for infinite data."""
  source = make_source(dataset, dataset.train)

  def make_input_fn(examples_per_batch: int) -> InputFn:
    return source.make_eval_input_fn(make_batching(
        dataset, settings, one_hot=False, examples_per_batch=examples_per_batch))

  return SingleEpoch(len(source.class_indices()), source.cache_key(), make_input_fn)


def make_batching(dataset: DataSet, settings: Settings, one_hot: bool, examples_per_batch: int,
                  shard: Shard = UNSHARDED) -> Batching:
  """Makes the Batching for the examples of a data set, from the settings of the run."""
  return Batching(dataset.image_shape or NO_IMAGE, len(dataset.labels), one_hot, examples_per_batch,
                  settings.shuffle_buffer, threads.num_parallel_calls(settings[groups.Input]),
                  settings.prefetch, settings.seed, shard, settings.augment,
                  threads.private_threadpool_size(settings[groups.Input],
                                                  settings[groups.Devices]),
                  num_queued_calls=threads.num_queued_calls(settings[groups.Input]))
