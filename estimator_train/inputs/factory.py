"""From the description of a data set to the `input_fn`s that read it."""

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

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
from estimator_train.inputs import arrays
from estimator_train.inputs.arrays import ArraySource
from estimator_train.inputs.batching import ALL, Batching, Shard
from estimator_train.inputs.idx_files import IdxSource
from estimator_train.inputs.image_source import ImageSource
from estimator_train.inputs.source import BadImage, InputFn, Source
from estimator_train.inputs.synthetic import SyntheticSource
from estimator_train.settings import Settings, choices, groups

SOURCES: Dict[type, Callable[..., Source]] = {
    IdxSplit: IdxSource,
    ImageSplit: ImageSource,
    ArraySplit: ArraySource,
    SyntheticSplit: SyntheticSource,
}


class SplitSizes(NamedTuple):
  """The number of examples of each split; None where it has no end."""
  train: Optional[int]
  test: Optional[int]


class Pass(NamedTuple):
  """One pass over the training examples, in the order of their list.

  Attributes:
    num_examples: N.
    cache_key: distinguishes them from others.
    make_input_fn: makes an `input_fn` of batches of so many.
  """
  num_examples: int
  cache_key: str
  make_input_fn: Callable[[int], InputFn]


def make_source(dataset: DataSet, split: Optional[Split]) -> Source:
  """Makes the source of a split.

  Raises:
    ValueError: no source reads such a split.
  """
  if type(split) not in SOURCES:
    raise ValueError('no source is implemented for {}'.format(type(split).__name__))
  return SOURCES[type(split)](dataset, split)


def skip_bad(dataset: DataSet, settings: groups.Input,
             model_dir: str) -> Tuple[DataSet, List[BadImage]]:
  """Returns the data set without the examples that cannot be decoded, and those.

  Raises:
    UserError: there are more of them than `--max_bad_images` allows, or a class has no other.
  """
  skipped: List[BadImage] = []

  def good(name: str, split: Optional[Split]) -> Optional[Split]:
    if split is None:
      return None
    split, bad = make_source(dataset, split).skip_bad(name, settings, model_dir)
    skipped.extend(bad)
    return split

  return dataset._replace(train=good('train', dataset.train),
                          test=good('test', dataset.test)), skipped


def check_files(dataset: DataSet, settings: Settings) -> SplitSizes:
  """Checks the files that a run will read as far as that is quick, and counts their examples.

  Raises:
    UserError: a file is missing or is not what it should be; it names the file. Or the settings
      ask for what cannot be done with this format.
  """
  if dataset.train is not None and settings.cache not in choices.CACHES and (
      not make_source(dataset, dataset.train).caches_in_folder):
    raise UserError('a cache in a folder is for image files',
                    '--cache={} --dataset={}'.format(settings.cache, settings.dataset),
                    'give --cache=memory, or leave it out')
  return SplitSizes(
      make_source(dataset, dataset.train).check() if settings.trains else None,
      make_source(dataset, dataset.test).check() if settings.evaluates else None)


def cache_of(dataset: DataSet, settings: groups.Input) -> str:
  """Returns where training examples are kept: `memory`, `none`, or a folder."""
  if settings.cache != 'auto':
    return settings.cache
  return make_source(dataset, dataset.train).default_cache


def class_counts(dataset: DataSet) -> List[int]:
  """Returns the number of training examples of each class; UserError where they have no end."""
  return np.bincount(make_source(dataset, dataset.train).classes(),
                     minlength=len(dataset.labels)).tolist()


def make_train_input_fn(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                        shard: Shard = ALL) -> InputFn:
  """Makes the `input_fn` of training; see the module of the source.

  Args:
    dataset: what to read.
    settings: of the run.
    one_hot: whether labels are one-hot, not class indices.
    batch_size: per replica.
    shard: of the examples.
  """
  batching = make_batching(dataset, settings, one_hot, batch_size, shard)
  return make_source(dataset, dataset.train).make_train_input_fn(
      batching, cache_of(dataset, settings[groups.Input]))


def make_feature_input_fn(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                          shard: Shard, features: np.ndarray) -> InputFn:
  """Makes the `input_fn` of training on features, [N, ...], in the order of the examples' list.

  The examples come in the order in which the images would.
  """
  source = make_source(dataset, dataset.train)
  batching = make_batching(dataset, settings, one_hot, batch_size, shard)
  return arrays.make_train_input_fn(features, source.classes(), batching, source.order(batching))


def make_eval_input_fn(dataset: DataSet, settings: Settings, one_hot: bool,
                       batch_size: int) -> InputFn:
  """Makes the `input_fn` of evaluation: every test example once."""
  return make_source(dataset, dataset.test).make_eval_input_fn(
      make_batching(dataset, settings, one_hot, batch_size))


def make_pass(dataset: DataSet, settings: Settings) -> Pass:
  """Returns a pass over the training examples; UserError where they have no end."""
  source = make_source(dataset, dataset.train)

  def make_input_fn(batch_size: int) -> InputFn:
    return source.make_eval_input_fn(make_batching(dataset, settings, False, batch_size))

  return Pass(len(source.classes()), source.cache_key(), make_input_fn)


def make_batching(dataset: DataSet, settings: Settings, one_hot: bool, batch_size: int,
                  shard: Shard = ALL) -> Batching:
  """Returns how the examples of the data set become batches."""
  return Batching(dataset.image_shape, len(dataset.labels), one_hot, batch_size,
                  settings.shuffle_buffer, threads.num_parallel_calls(settings[groups.Input]),
                  settings.prefetch, settings.seed, shard, threads.private_to_input(
                      settings[groups.Input], settings[groups.Devices]))
