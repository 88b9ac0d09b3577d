"""From a data set's description to the `input_fn`s that read it."""

from typing import Callable, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, idx
from estimator_train.datasets.description import (
  ArraySplit,
  DataSet,
  IdxSplit,
  ImageSplit,
  Split,
  SyntheticSplit,
)
from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.inputs import arrays, idx_files, image_cache, image_files, synthetic
from estimator_train.inputs.batching import ALL, Batching, Share
from estimator_train.settings import Settings, choices

InputFn = Callable[[], tf.data.Dataset]

# Of idx files, decompressed: up to here memory holds them unless the user says otherwise.
_SMALL_BYTES = 256 << 20


class SplitSizes(NamedTuple):
  """The number of examples of each split; None where it has no end."""
  train: Optional[int]
  test: Optional[int]


class Pass(NamedTuple):
  """One pass over the training examples, in the order of their list.

  Attributes:
    num_examples: N.
    fingerprint: tells these files from others.
    make_input_fn: makes an `input_fn` of batches of so many.
  """
  num_examples: int
  fingerprint: str
  make_input_fn: Callable[[int], InputFn]


def check_files(dataset: DataSet, settings: Settings) -> SplitSizes:
  """Checks the files that a run will read as far as that is quick, and counts their examples.

  Raises:
    UserError: a file is missing or is not what it should be; it names the file. Or the settings
      ask for what cannot be done with this kind of files.
  """
  def count(split: Optional[Split], wanted: bool) -> Optional[int]:
    if not wanted or isinstance(split, SyntheticSplit):
      return None
    if isinstance(split, IdxSplit):
      # Published files have been compared with their checksums when they were got.
      return idx.check_split(split, dataset.image_shape, len(dataset.labels),
                             checksummed=bool(dataset.files))
    assert isinstance(split, (ImageSplit, ArraySplit))
    return len(split.classes)

  if isinstance(dataset.train, (IdxSplit, ArraySplit)) and settings.cache not in choices.CACHES:
    raise UserError('a cache in a folder is for image files',
                    '--cache={} --dataset={}'.format(settings.cache, settings.dataset),
                    'give --cache=memory, or leave it out')
  return SplitSizes(count(dataset.train, settings.trains), count(dataset.test, settings.evaluates))


def cache_of(dataset: DataSet, settings: Settings) -> str:
  """Returns where training examples are kept: `memory`, `none`, or a folder."""
  if settings.cache != 'auto':
    return settings.cache
  split = dataset.train
  is_small = (isinstance(split, IdxSplit)
              and idx.count(split) * int(np.prod(dataset.image_shape)) <= _SMALL_BYTES)
  return 'memory' if is_small else 'none'


def class_counts(dataset: DataSet) -> List[int]:
  """Returns the number of training examples of each class; UserError where they are made up."""
  return np.bincount(_train_classes(dataset), minlength=len(dataset.labels)).tolist()


def make_train_input_fn(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                        share: Share = ALL) -> InputFn:
  """Makes the `input_fn` of training; see the module that reads this kind of data set.

  Args:
    dataset: what to read.
    settings: says how.
    one_hot: whether labels are one-hot, not class numbers.
    batch_size: per replica.
    share: which of them.
  """
  split = dataset.train
  batching = make_batching(dataset, settings, one_hot, batch_size, share)
  cache = cache_of(dataset, settings)
  if isinstance(split, ImageSplit):
    if cache == 'none':
      return image_files.make_train_input_fn(split, batching)
    return arrays.make_train_input_fn(
        image_cache.images(split, batching, cache), split.classes, batching,
        order=batching.order(len(split.files)))
  if isinstance(split, IdxSplit):
    if cache == 'none':
      return idx_files.make_train_input_fn(split, batching)
    return arrays.make_idx_train_input_fn(split, batching)
  if isinstance(split, ArraySplit):
    return arrays.make_train_input_fn(split.images, split.classes, batching,
                                      order=batching.order(len(split.classes)))
  assert split is not None
  return synthetic.make_input_fn(batching, split.num_batches)


def make_feature_input_fn(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                          share: Share, features: np.ndarray) -> InputFn:
  """Makes the `input_fn` of training on features, [N, ...], in the order of the examples' list.

  The examples come in the order in which the images would.
  """
  batching = make_batching(dataset, settings, one_hot, batch_size, share)
  order = None if isinstance(dataset.train, IdxSplit) else batching.order(len(features))
  return arrays.make_train_input_fn(features, _train_classes(dataset), batching, order)


def make_eval_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                       batch_size: int) -> InputFn:
  """Makes the `input_fn` of evaluation: every test example once."""
  assert dataset.test is not None
  return _once(dataset.test, make_batching(dataset, settings, one_hot, batch_size))


def make_pass(dataset: DataSet, settings: Settings) -> Pass:
  """Returns a pass over the training examples; UserError where they have no end."""
  split = dataset.train
  num_examples = len(_train_classes(dataset))
  assert isinstance(split, (IdxSplit, ImageSplit, ArraySplit))
  if isinstance(split, ArraySplit):
    digest = fingerprint.of_arrays(split)
  elif isinstance(split, ImageSplit):
    digest = fingerprint.of_files(split.files)
  else:
    digest = fingerprint.of_files([split.images, split.labels])

  def make_input_fn(batch_size: int) -> InputFn:
    return _once(split, make_batching(dataset, settings, False, batch_size))

  return Pass(num_examples, digest, make_input_fn)


def _once(split: Split, batching: Batching) -> InputFn:
  if isinstance(split, ImageSplit):
    return image_files.make_eval_input_fn(split, batching)
  if isinstance(split, IdxSplit):
    return idx_files.make_eval_input_fn(split, batching)
  if isinstance(split, ArraySplit):
    return arrays.make_eval_input_fn(split.images, split.classes, batching)
  return synthetic.make_input_fn(batching, split.num_batches)


def _train_classes(dataset: DataSet) -> np.ndarray:
  """Returns the class number of each training example."""
  if isinstance(dataset.train, (ImageSplit, ArraySplit)):
    return dataset.train.classes
  if isinstance(dataset.train, IdxSplit):
    return arrays.read_idx_labels(dataset.train)
  raise UserError('made-up examples have no end, and cannot be gone through',
                  '--dataset=' + dataset.name,
                  'leave --class_weights and --cache_features out')


def make_batching(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                  share: Share = ALL) -> Batching:
  """Returns how the data set's examples become batches."""
  return Batching(dataset.image_shape, len(dataset.labels), one_hot, batch_size,
                  settings.shuffle_buffer, threads.num_parallel_calls(settings), settings.prefetch,
                  settings.seed, share, threads.private_to_input(settings))
