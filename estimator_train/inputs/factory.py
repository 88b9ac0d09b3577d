"""From a data set's description to the `input_fn`s that read it."""

from typing import Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import DataSet, IdxSplit
from estimator_train.inputs import arrays, idx_files, synthetic
from estimator_train.inputs.batching import Batching
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
  batching = _batching(dataset, settings, one_hot, batch_size)._replace(
      skip_examples=skip_examples)
  if dataset.train is None:
    return synthetic.make_input_fn(batching)
  if settings.cache == 'memory':
    return arrays.make_train_input_fn(
        *arrays.read_idx(dataset.train, dataset.image_shape), batching=batching)
  return idx_files.make_train_input_fn(dataset.train, batching)


def make_eval_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                       batch_size: int) -> InputFn:
  """Makes the `input_fn` of evaluation: every test example once."""
  batching = _batching(dataset, settings, one_hot, batch_size)
  if dataset.test is None:
    return synthetic.make_input_fn(batching, _SYNTHETIC_EVAL_BATCHES)
  return idx_files.make_eval_input_fn(dataset.test, batching)


def _batching(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int) -> Batching:
  return Batching(dataset.image_shape, len(dataset.labels), one_hot, batch_size,
                  settings.shuffle_buffer, settings.prefetch, settings.seed)
