"""From a data set's description to the `input_fn`s that read it."""

from typing import Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import DataSet, IdxSplit
from estimator_train.inputs import arrays, idx_files, synthetic
from estimator_train.settings import Settings

InputFn = Callable[[], tf.data.Dataset]

_SYNTHETIC_EVAL_BATCHES = 10


class SplitSizes(NamedTuple):
  """The number of examples of each split; None where it has no end."""
  train: Optional[int]
  test: Optional[int]


def check_files(dataset: DataSet, trains: bool, evaluates: bool) -> SplitSizes:
  """Checks the files that a run will read, and counts their examples.

  Raises:
    UserError: a file is missing or is not what it should be; it names the file.
  """
  def count(split: Optional[IdxSplit], wanted: bool) -> Optional[int]:
    if split is None or not wanted:
      return None
    # Published files have been compared with their checksums when they were got.
    return idx.check_split(split, dataset.image_shape, len(dataset.labels),
                           checksummed=bool(dataset.files))

  return SplitSizes(count(dataset.train, trains), count(dataset.test, evaluates))


def make_train_input_fn(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                        skip_examples: int) -> InputFn:
  """Makes the `input_fn` of training; see the module that reads this kind of data set.

  Args:
    dataset: what to read.
    settings: says how.
    one_hot: whether labels are one-hot, not class numbers.
    batch_size: per replica.
    skip_examples: the examples that earlier runs of this training took.
  """
  shape, num_classes = dataset.image_shape, len(dataset.labels)
  if dataset.train is None:
    return synthetic.make_input_fn(shape, num_classes, one_hot, batch_size, settings.seed)
  if settings.cache == 'memory':
    images, labels = arrays.read_idx(dataset.train, shape)
    return arrays.make_train_input_fn(
        images, labels, num_classes, one_hot, batch_size, settings.shuffle_buffer,
        settings.prefetch, settings.seed, skip_examples)
  return idx_files.make_train_input_fn(
      dataset.train, shape, num_classes, one_hot, batch_size, settings.shuffle_buffer,
      settings.prefetch, settings.seed, skip_examples)


def make_eval_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                       batch_size: int) -> InputFn:
  """Makes the `input_fn` of evaluation: every test example once."""
  shape, num_classes = dataset.image_shape, len(dataset.labels)
  if dataset.test is None:
    return synthetic.make_input_fn(shape, num_classes, one_hot, batch_size, settings.seed,
                                   _SYNTHETIC_EVAL_BATCHES)
  return idx_files.make_eval_input_fn(dataset.test, shape, num_classes, one_hot, batch_size,
                                      settings.prefetch)
