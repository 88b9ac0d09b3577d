"""Reads examples that functions of the user make from records, or as a tf.data.Dataset."""

import abc
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSpec, ExampleSplit, ParsedRecordSplit, Role, identity
from estimator_train.data.batching import (
  NO_IMAGE_SHAPE,
  BatchSettings,
  OrderSettings,
  PixelSettings,
  make_ordered_chunks,
  map_python_function,
  without_autograph,
)
from estimator_train.data.record_index import RecordReader, describe_record
from estimator_train.data.source import (
  FilePath,
  InputFn,
  Source,
  preserve_user_errors,
  translate_errors,
)
from estimator_train.distribution import devices
from estimator_train.errors import UserError, first_line
from estimator_train.settings import user_code
from estimator_train.settings.user_code import qualified_name
from estimator_train.system import json_values, machine, storage
from estimator_train.system.formatting import format_bytes
from estimator_train.system.progress import show_phase

_FUNCTION_FAILED = 'a function of a split failed'
_COUNTS_FILE, _COUNTS_SCHEMA = 'example_counts.json', json_values.mapping(json_values.integer(1))
# The datasets of tf.compat.v2 also have this base class.
_DATASET_BASE_CLASS = tf.data.Dataset.__mro__[1]
_CHUNK_SIZE = 64  # The number of examples that one Python call reads.
_PARALLEL_READS = 2  # The number of calls that read records at once.


class UserExampleSource(Source):
  """A source of examples that a function of the user makes. A subclass reads one kind of split.

  Attributes:
    user_function: returns an example, a batch, or a dataset of examples. An example is `(features,
      label)` or `(features, label, weight)`.
  """
  is_user_defined = True
  user_function: Any

  @abc.abstractmethod
  def read_in_order(self, batch: BatchSettings) -> tf.data.Dataset:
    """Returns a dataset of batches of all examples, in the order of the split."""

  @abc.abstractmethod
  def read_shuffled(self, order: OrderSettings, batch: BatchSettings) -> tf.data.Dataset:
    """Returns an infinite dataset of batches of the training examples of this worker."""

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    if cache != 'memory':
      return lambda: self._encode_batches(self.read_shuffled(order, batch), batch)
    num_examples = self.check_and_count_examples() or 0
    with tf.Graph().as_default():
      arrays, element = _read_all_batches(self.read_in_order(batch))

    @without_autograph
    def gather(indices: tf.Tensor) -> Any:
      tensors = tf.numpy_function(lambda indices: [array[indices] for array in arrays], [indices],
                                  [tensor.dtype for tensor in tf.nest.flatten(element)])
      for tensor, array in zip(tensors, arrays):
        tensor.set_shape((None,) + array.shape[1:])
      return tf.nest.pack_sequence_as(element, tensors)

    return lambda: self._encode_batches(order.make_index_chunks(
        num_examples, batch.size, self.is_sequential).map(gather), batch)

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    return lambda: self._encode_batches(self.read_in_order(batch), batch)

  def read_class_indices(self) -> np.ndarray:
    with tf.Graph().as_default(), translate_errors(self):
      examples = self.read_in_order(self._make_unencoded_settings(_CHUNK_SIZE))
      self._check_structure(examples)
      labels, _ = _read_all_batches(examples.map(lambda *parts: parts[1]))
    return labels[0].astype(np.int64).reshape(-1)

  def describe_content(self) -> str:
    # If two passes read different examples, the name of the data set takes the place of a digest.
    digest = identity.digest_first_examples(self.make_eval_input_fn(
        PixelSettings(self.spec.image_shape or NO_IMAGE_SHAPE), self._make_unencoded_settings(1)))
    return '{} {}'.format(self.check_and_count_examples(), digest or self.spec.name)

  def _make_unencoded_settings(self, size: int) -> BatchSettings:
    return BatchSettings(size, len(self.spec.labels), one_hot=False)

  def describe_invalid_label(self, label: Any) -> Optional[str]:
    """Returns a description of a label that is not a valid class index.

    Returns None if the label is valid, or if the data set has no classes.
    """
    num_classes = len(self.spec.labels)
    if not num_classes or (np.ndim(label) == 0 and 0 <= label < num_classes):
      return None
    return 'the label is {}, but classes are from 0 to {}'.format(label, num_classes - 1)

  def _encode_batches(self, batches: tf.data.Dataset, batch: BatchSettings) -> tf.data.Dataset:
    """Returns a prefetched dataset of batches (features, labels) with encoded labels.

    If there are weights, the features are `{'features': ..., 'sample_weights': ...}`.

    Args:
      batches: a dataset of (features, labels) or (features, labels, weights).

    Raises:
      UserError: the function does not return (features, label) or (features, label, weight), or
        the dtype of the labels or weights is wrong.
    """
    self._check_structure(batches)

    @without_autograph
    def encode(features: Any, labels: Any, weights: Any = None) -> Tuple[Any, Any]:
      if batch.num_classes:
        labels = batch.check_and_encode_labels(tf.cast(labels, tf.int64))
      if weights is not None:
        features = {'features': features, 'sample_weights': weights}
      return features, labels

    return batch.prefetch_batches(batches.map(encode))

  def _check_structure(self, batches: tf.data.Dataset) -> None:
    """Raises a UserError if the structure, or the dtype of labels or weights, is wrong."""
    structure, name = tf.data.get_output_types(batches), qualified_name(self.user_function)
    if not isinstance(structure, tuple) or len(structure) not in (2, 3):
      raise UserError('an example must be (features, label) or (features, label, weight)',
                      '{} returns {}'.format(name, structure), 'return a tuple of two or three')
    for part_name, part in zip(('labels', 'weights'), structure[1:]):
      must_be_integers = bool(self.spec.labels) and part_name == 'labels'
      for dtype in tf.nest.flatten(part):
        if dtype == tf.string or (must_be_integers and not (dtype.is_integer or dtype.is_bool)):
          raise UserError(
              '{} must be {}'.format(part_name, 'integers, indices into the class names'
                                     if must_be_integers else 'numbers'),
              '{} returns {}'.format(name, dtype.name),
              'convert them in this function, such as with tf.lookup.StaticHashTable'
              if dtype == tf.string else 'give tf.cast(label, tf.int64)')


class ExampleSource(UserExampleSource):
  """The source of an ExampleSplit, whose examples are read one after the other.

  Each worker reads all examples, but uses only those of its shard.
  """
  split: ExampleSplit
  format_name = 'examples'
  last_stage = None
  is_sequential = True

  def __init__(self, spec: DataSpec, split: ExampleSplit, role: Role = Role.TRAIN) -> None:
    super().__init__(spec, split, role)
    self.user_function = split.make_dataset
    self._count_origin, self._count_remedy = 'of num_examples', 'correct num_examples'

  def open(self, folder: str) -> None:
    if self.split.num_examples is None:
      num_examples = _load_or_count_examples(self.user_function, folder)
      self.split = self.split._replace(num_examples=num_examples)
      self._count_origin = 'in ' + os.path.join(folder, _COUNTS_FILE)
      self._count_remedy = 'remove this file if the data has changed; the function must make the ' \
          'same examples each time'
    super().open(folder)

  def check_and_count_examples(self) -> int:
    if not self.split.num_examples:
      raise UserError('a split of the data set has no examples', '--dataset=' + self.spec.name,
                      'return a dataset with examples from make_dataset')
    return int(self.split.num_examples)

  def read_in_order(self, batch: BatchSettings) -> tf.data.Dataset:
    return self._drop_indices(self._make_checked_pass().batch(batch.size))

  def read_shuffled(self, order: OrderSettings, batch: BatchSettings) -> tf.data.Dataset:
    return self._drop_indices(order.shuffle_and_shard(
        self._make_checked_pass(), self.check_and_count_examples()).batch(batch.size))

  def _make_checked_pass(self) -> tf.data.Dataset:
    """Returns a dataset of ((example, number), position) for one pass.

    The expected number of examples may be wrong, because an earlier run or the user has stated it.
    If the function makes more examples, the pass fails at its end. If the function makes fewer
    examples, copies of its first example take the place of the missing ones. The number of a copy
    is -1, on which `_drop_indices` fails. The examples are not checked by a Python function,
    because calling it would take 50 µs per example.
    """
    count, examples = self.split.num_examples, _make_user_dataset(self.user_function)
    indices = tf.data.Dataset.range(count).concatenate(
        tf.data.Dataset.range(1).map(without_autograph(
            lambda _: self._make_failing_scalar('more', tf.int64))))
    missing = tf.data.Dataset.zip((
        examples.take(1), tf.data.Dataset.from_tensors(tf.constant(-1, tf.int64)))).repeat()
    indexed_examples = tf.data.Dataset.zip((examples, indices)).concatenate(missing)
    # `zip` reads its first dataset first, so at the end of the pass it reads one more element of
    # `indexed_examples`. This element raises the error if the function makes too many examples.
    return tf.data.Dataset.zip((indexed_examples, tf.data.Dataset.range(count)))

  def _drop_indices(self, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the batches without the indices. A batch fails if one of its examples is missing."""
    @without_autograph
    def drop_indices(batch: Any, _: tf.Tensor) -> Any:
      examples, indices = batch
      check = tf.cond(tf.reduce_min(indices) < 0,
                      lambda: self._make_failing_scalar('fewer', tf.bool), lambda: True)
      with tf.control_dependencies([check]):
        # The components of sparse and ragged tensors also get the control dependency.
        return tf.nest.map_structure(tf.identity, examples, expand_composites=True)

    return batches.map(drop_indices)

  def _make_failing_scalar(self, comparison: str, dtype: tf.DType) -> tf.Tensor:
    """Returns a scalar whose evaluation raises a UserError about the number of examples.

    Args:
      comparison: `more` or `fewer`.
    """
    @preserve_user_errors
    def fail() -> None:
      raise UserError('the number of examples has changed', '{} makes {} than the {} {}'.format(
          qualified_name(self.user_function), comparison, self.split.num_examples,
          self._count_origin), self._count_remedy)

    tensor = tf.numpy_function(fail, [], dtype)
    tensor.set_shape([])
    return tensor

  def files_fingerprint(self) -> str:
    raise UserError('--cache_features requires data whose changes are noticed',
                    '--dataset={} is an ExampleSplit'.format(self.spec.name),
                    'omit --cache_features')

  def find_example_error(self) -> Optional[UserError]:
    with devices.cpu_session() as session:
      dataset = _make_user_dataset(self.user_function)
      next_example = tf.data.make_one_shot_iterator(dataset).get_next()
      read = session.make_callable((next_example[1], tf.nest.flatten(next_example)))
      for index in range(self.check_and_count_examples()):
        try:
          reason = self.describe_invalid_label(read()[0])
        except tf.errors.OpError as error:
          reason = first_line(error)
        if reason is not None:
          return UserError('make_dataset of a split failed', '{}, example {} ({})'.format(
              qualified_name(self.user_function), index, reason),
                           'fix this function, or the example')
    return None


class ParsedRecordSource(UserExampleSource):
  """The source of a ParsedRecordSplit. A worker reads only the records of its shard."""
  split: ParsedRecordSplit
  format_name = 'records'

  def __init__(self, spec: DataSpec, split: ParsedRecordSplit, role: Role = Role.TRAIN) -> None:
    super().__init__(spec, split, role)
    self.user_function = split.parse or split.parse_batch
    self._reader = RecordReader(split.records)

  def check_and_count_examples(self) -> Optional[int]:
    self.split.records.check_intact()
    return self.split.records.num_records

  def read_in_order(self, batch: BatchSettings) -> tf.data.Dataset:
    return self._parse_batches(lambda chunk_size: make_ordered_chunks(
        self.split.records.num_records, chunk_size), batch)

  def read_shuffled(self, order: OrderSettings, batch: BatchSettings) -> tf.data.Dataset:
    return self._parse_batches(
        lambda chunk_size: self._training_chunks(order, chunk_size), batch)

  def digest_for_workers(self) -> str:
    return storage.fingerprint_arrays([self.split.records.lengths])

  def describe_content(self) -> str:
    return super().describe_content() + identity.digest_records(self.split.records)

  def identify_example(self, index: int) -> Dict[str, Any]:
    path, record = self.split.records.locate_record(index)
    return {'file': '{}:{}'.format(os.fsdecode(path), record)}

  def list_files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def make_stage_input_fns(self, order: OrderSettings, pixels: PixelSettings,
                           batch: BatchSettings) -> Dict[str, InputFn]:
    return {'read': lambda: batch.use_private_threads(
        self._read_records(self._training_chunks(order, batch.size)))}

  def find_example_error(self) -> Optional[UserError]:
    with devices.cpu_session() as session:
      record = tf.placeholder(tf.string, [])
      parts = (self.user_function(record) if self.split.parse is not None
               else tf.nest.map_structure(tf.squeeze, self.user_function(record[tf.newaxis])))
      run_parse = session.make_callable((parts[1], tf.nest.flatten(parts)), [record])
      for index in range(self.split.records.num_records):
        try:
          label, _ = run_parse(self._reader.read(np.array([index]))[0])
          reason = self.describe_invalid_label(label)
        except tf.errors.OpError as error:
          frames = error.op.traceback if error.op is not None else []
          reason = user_code.locate_user_code(
              (frame[0], frame[1]) for frame in frames) + first_line(error)
        if reason is not None:
          return UserError(_FUNCTION_FAILED, '{} for {} ({})'.format(
              qualified_name(self.user_function),
              describe_record(*self.split.records.locate_record(index)), reason),
                           'fix this function, or the record')
    return None

  def _training_chunks(self, order: OrderSettings, chunk_size: int) -> tf.data.Dataset:
    return order.make_index_chunks(self.split.records.num_records, chunk_size, self.is_sequential)

  def _parse_batches(self, make_chunks: Callable[[int], tf.data.Dataset],
                     batch: BatchSettings) -> tf.data.Dataset:
    """Returns a dataset of batches of what the function of the user returns for records.

    Args:
      make_chunks: takes a chunk size, and returns a dataset of chunks of record indices.
    """
    with user_code.translate_errors(_FUNCTION_FAILED, qualified_name(self.user_function)):
      if self.split.parse_batch is not None:
        return self._read_records(make_chunks(batch.size)).map(
            self.user_function, batch.num_parallel_calls)
      records = self._read_records(make_chunks(_CHUNK_SIZE)).apply(tf.data.experimental.unbatch())
      return records.apply(tf.data.experimental.map_and_batch(
          self.user_function, batch.size, num_parallel_calls=batch.num_parallel_calls))

  def _read_records(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of records, string [n] each, for chunks of record indices, int64 [n]."""
    @preserve_user_errors
    def read(indices: np.ndarray) -> np.ndarray:
      return np.array(self._reader.read(indices), object)

    return map_python_function(chunks, read, [(tf.string, [None])], _PARALLEL_READS)


def _read_all_batches(batches: tf.data.Dataset) -> Tuple[List[np.ndarray], Any]:
  """Reads a dataset of batches in the default graph.

  Returns:
    A tuple (arrays, element). `arrays` has one array [N, ...] for each component of the examples,
    in the order of tf.nest.flatten. `element` has the structure of a batch.

  Raises:
    UserError: the examples do not fit into memory.
    tf.errors.OpError: an example cannot be read.
  """
  element = tf.data.make_one_shot_iterator(batches).get_next()
  component_batches: List[List[np.ndarray]] = [[] for _ in tf.nest.flatten(element)]
  num_bytes, free_bytes = 0, machine.available_bytes()
  with tf.Session(config=devices.make_cpu_config()) as session:
    read_batch = session.make_callable(tf.nest.flatten(element))
    while True:
      try:
        batch = read_batch()
      except tf.errors.OutOfRangeError:
        return [np.concatenate(arrays) for arrays in component_batches], element
      num_bytes += sum(array.nbytes for array in batch)
      if 2 * num_bytes > free_bytes:  # Concatenating copies the arrays.
        raise UserError('the cache does not fit into memory',
                        '--cache=memory with {} free'.format(format_bytes(free_bytes)),
                        'give --cache=none, or omit --cache')
      for arrays, array in zip(component_batches, batch):
        arrays.append(array)


def _make_user_dataset(make_dataset: Callable[[], Any]) -> tf.data.Dataset:
  with user_code.translate_errors(_FUNCTION_FAILED, qualified_name(make_dataset)):
    dataset = make_dataset()
  if not isinstance(dataset, _DATASET_BASE_CLASS):
    raise UserError('make_dataset must return a tf.data.Dataset', '{} returns {}'.format(
        qualified_name(make_dataset), type(dataset).__name__),
        'return a dataset of single examples')
  return dataset


def _load_or_count_examples(make_dataset: Callable[[], Any], folder: str) -> int:
  """Returns the number of examples, and stores it in the folder for later runs.

  If `make_dataset` is a lambda or a nested function, the number is not stored, because several such
  functions can have the same name.
  """
  if not user_code.is_importable(make_dataset):
    return _count_elements(make_dataset)
  name, path = qualified_name(make_dataset), os.path.join(folder, _COUNTS_FILE)
  counts = storage.load_json_or_warn(path, _COUNTS_SCHEMA) or {}
  if name not in counts:
    counts[name] = _count_elements(make_dataset)
    storage.write_json(path, counts)
  return int(counts[name])


def _count_elements(make_dataset: Callable[[], Any]) -> int:
  """Reads all elements of a dataset, and returns their number.

  Raises:
    UserError: the dataset is infinite, or cannot be read.
  """
  name = qualified_name(make_dataset)
  with show_phase('counting the examples of ' + name), devices.cpu_session() as session:
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
