"""Reads the examples of a tf.data.Dataset that a function of the user makes."""

import logging
import os
from typing import Any, Callable, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import Batching
from estimator_train.data.parsed_examples import UserExampleSource, function_name, naming
from estimator_train.errors import UserError, first_line
from estimator_train.settings import user_code
from estimator_train.system import stored

_LOG = logging.getLogger('estimator_train')
_COUNTS_FILE = 'example_counts.json'
# Also the base class of the datasets of tf.compat.v2.
_DATASET_BASE_CLASS = tf.data.Dataset.__mro__[1]


class ExampleSource(UserExampleSource):
  """The source of an ExampleSplit, whose examples are read one after the other.

  With several workers, each worker reads all examples, and keeps those of its shard.
  """
  format_name = 'examples'
  last_stage = None

  def open(self, folder: str) -> None:
    if self.split.num_examples is None:
      self.split = self.split._replace(num_examples=_count_once(self.split.make_dataset, folder))
    super().open(folder)

  def check_and_count(self) -> Optional[int]:
    if not self.split.num_examples:
      raise UserError('a split of the data set has no examples', '--dataset=' + self.dataset.name,
                      'return a dataset with examples from make_dataset')
    return int(self.split.num_examples)

  @property
  def function(self) -> Callable[[], Any]:
    function: Callable[[], Any] = self.split.make_dataset
    return function

  def read_in_order(self, batching: Batching) -> tf.data.Dataset:
    return _make_user_dataset(self.function).batch(batching.examples_per_batch)

  def read_shuffled(self, batching: Batching) -> tf.data.Dataset:
    return batching.shuffle_and_shard(
        _make_user_dataset(self.function), self.split.num_examples).batch(
            batching.examples_per_batch)

  def cache_key(self) -> str:
    raise UserError('--cache_features requires data whose changes are noticed',
                    '--dataset={} is an ExampleSplit'.format(self.dataset.name),
                    'omit --cache_features')

  def training_chunks(self, num_examples: int, batching: Batching,
                      chunk_size: int) -> tf.data.Dataset:
    return batching.shuffle_and_shard(tf.data.Dataset.range(num_examples),
                                      num_examples).batch(chunk_size)

  def explain_failure(self) -> Optional[UserError]:
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      dataset = _make_user_dataset(self.split.make_dataset)
      next_example = tf.data.make_one_shot_iterator(dataset).get_next()
      read = session.make_callable((next_example[1], tf.nest.flatten(next_example)))
      for index in range(self.split.num_examples):
        try:
          reason = self.find_invalid_class(read()[0])
        except tf.errors.OpError as error:
          reason = first_line(error)
        if reason is not None:
          return UserError('make_dataset of a split failed', '{}, example {} ({})'.format(
              function_name(self.split.make_dataset), index, reason),
              'fix this function, or the example')
    return None


def _make_user_dataset(make_dataset: Callable[[], Any]) -> tf.data.Dataset:
  """Returns the dataset of the user; raises a UserError if the function fails."""
  with naming(make_dataset):
    dataset = make_dataset()
  if not isinstance(dataset, _DATASET_BASE_CLASS):
    raise UserError('make_dataset must return a tf.data.Dataset', '{} returns {}'.format(
        function_name(make_dataset), type(dataset).__name__),
        'return a dataset of single examples')
  return dataset


def _count_once(make_dataset: Callable[[], Any], model_dir: str) -> int:
  """Returns the number of examples. It is stored in `model_dir` for later runs.

  The number of a lambda or a nested function is not stored, because several of them can have the
  same name.
  """
  if not user_code.is_importable(make_dataset):
    return _count(make_dataset)
  name, path = function_name(make_dataset), os.path.join(model_dir, _COUNTS_FILE)
  counts = stored.load_or_warn(path, stored.parse_json_with_digest) or {}
  if name not in counts:
    counts[name] = _count(make_dataset)
    stored.write_json_with_digest(path, counts)
  return int(counts[name])


def _count(make_dataset: Callable[[], Any]) -> int:
  """Reads all elements of a dataset, and returns their number.

  Raises:
    UserError: the dataset is infinite, or cannot be read.
  """
  name = function_name(make_dataset)
  _LOG.info('counting the examples of %s', name)
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    dataset = _make_user_dataset(make_dataset)
    if session.run(tf.data.experimental.cardinality(dataset)) == (
        tf.data.experimental.INFINITE_CARDINALITY):
      raise UserError('a dataset of examples must be finite', name,
                      'omit `repeat`; the program repeats the examples')
    try:
      return int(session.run(dataset.reduce(np.int64(0), lambda count, *_: count + 1)))
    except tf.errors.OpError as error:
      raise UserError('make_dataset of a split failed', '{} ({})'.format(
          name, first_line(error)), 'fix this function') from error
