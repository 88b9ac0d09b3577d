"""Measures the rate of the input pipeline alone: from disk, from memory, and stage by stage."""

import contextlib
import glob
import math
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import psutil
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.distribution import threads
from estimator_train.inputs import factory
from estimator_train.inputs.source import InputFn, Path
from estimator_train.settings import Settings, groups

ExamplesAndSecs = Tuple[int, float]

_MIN_BATCHES = 3
_COLD_PASSES, _COLD_SECS = 3, 1.5
_WARM_PASSES, _WARM_SECS = 5, 0.5


class InputMeasurement(NamedTuple):
  """The measurements of an input pipeline.

  Attributes:
    num_examples: number of examples per epoch; None for infinite data.
    prepare_secs: seconds before the first example of a run, for example to fill the cache.
    cold: passes that started with no file in the page cache; with a cache, only the first pass.
    warm: passes on examples that had been read before.
    stages: passes of each stage combined with all stages before it, in order; the last entry is
      the complete pipeline.
    bytes_per_example: size of the files on disk per example; None if there are no files.
    bytes_from_storage: bytes that the kernel read from storage during the cold passes; None if
      it does not report them.
    bytes_expected: lower bound of `bytes_from_storage` if the passes were really cold.
    image_shape: (height, width, channels) of the pixels in a batch.
    pixels_dtype: name of the dtype of the pixels.
  """
  num_examples: Optional[int]
  prepare_secs: float
  cold: List[ExamplesAndSecs]
  warm: List[ExamplesAndSecs]
  stages: Dict[str, List[ExamplesAndSecs]]
  bytes_per_example: Optional[float]
  bytes_from_storage: Optional[int]
  bytes_expected: float
  image_shape: Tuple[int, int, int]
  pixels_dtype: str


def measure(dataset: DataSet, settings: Settings, one_hot: bool,
            num_examples: Optional[int],
            clock: Callable[[], float] = time.perf_counter) -> InputMeasurement:
  """Measures the input pipeline of the training at the global batch size.

  Each figure takes a few seconds, regardless of the size of the data set, except that a cache is
  filled completely. Warm passes read only examples that the cold passes have read.

  Args:
    dataset: data set to train on.
    settings: settings of the run.
    one_hot: whether labels are one-hot encoded.
    num_examples: number of examples per epoch; None for infinite data.
    clock: returns the time in seconds.

  Raises:
    UserError: the cache does not fit.
    tf.errors.OpError: a file cannot be read.
  """
  source = factory.make_source(dataset, dataset.train)
  batching = factory.make_batching(dataset, settings, one_hot, settings.batch_size)
  cache = factory.resolve_cache(dataset, settings[groups.Input])
  cached = cache != 'none' or source.is_in_memory
  files = source.files()
  evicted_files = files + _cache_files(cache)
  epoch = None if num_examples is None else math.ceil(num_examples / settings.batch_size)
  evict_from_page_cache(evicted_files)
  before, began = bytes_read_from_storage(), clock()
  whole = factory.make_train_input_fn(dataset, settings, one_hot, settings.batch_size)
  prepare_secs = clock() - began
  with _open_pipelines({'whole': whole}, settings, clock) as opened:
    cold = []
    # A cache is filled by now, and its pages stay in memory while they are mapped.
    for number in range(1 if cached else _COLD_PASSES):
      if number:
        evict_from_page_cache(evicted_files)
      cold.append(opened['whole'].run(_COLD_SECS, epoch, from_start=True))
    after = bytes_read_from_storage()
    pixels = opened['whole'].first_pixels()
  batches_read = min(examples for examples, _ in cold) // settings.batch_size
  # The first batch of a warm pass is not timed, hence the - 1.
  limit = None if cached or epoch is None or batches_read >= epoch else batches_read - 1
  by_stage = source.stages(batching, cached, whole)
  warm = _measure_interleaved(by_stage or {'whole': whole}, settings, limit, clock)
  size = sum(map(_file_size, files))
  bytes_per_example = size / num_examples if files and num_examples else None
  return InputMeasurement(
      num_examples, prepare_secs, cold, list(warm.values())[-1], warm if by_stage else {},
      bytes_per_example,
      None if before is None or after is None else after - before,
      _bytes_expected(cold, bytes_per_example or 0.,
                      pixels.nbytes / len(pixels) if cached else math.inf),
      pixels.shape[1:], pixels.dtype.name)


def take_batches(next_batch: Callable[[], Any], batch_size: int, secs: float,
                 max_batches: Optional[int], from_start: bool,
                 clock: Callable[[], float] = time.perf_counter) -> ExamplesAndSecs:
  """Takes batches for a given time, and at least three batches.

  Args:
    next_batch: gets the next batch.
    batch_size: examples per batch.
    secs: duration in seconds.
    max_batches: maximum number of batches; None for no limit.
    from_start: whether the first batch is timed, including, for example, the time to fill the
      shuffle buffer.
    clock: returns the time in seconds.

  Returns:
    The number of examples taken, and the seconds that this took.
  """
  if not from_start:
    next_batch()
  batches, began = 0, clock()
  limit = math.inf if max_batches is None else max(max_batches, _MIN_BATCHES)
  while True:
    next_batch()
    batches += 1
    elapsed = clock() - began
    if batches >= limit or (batches >= _MIN_BATCHES and elapsed >= secs):
      return batches * batch_size, elapsed


def evict_from_page_cache(paths: Iterable[Path]) -> None:
  """Asks the kernel to evict the files from its page cache. Pages that are in use stay."""
  for path in paths:
    with contextlib.suppress(OSError):  # The input pipeline reports files that cannot be read.
      descriptor = os.open(path, os.O_RDONLY)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
      finally:
        os.close(descriptor)


def bytes_read_from_storage() -> Optional[int]:
  """Returns the bytes that the kernel read from storage for this process; None if unknown."""
  try:
    return int(psutil.Process().io_counters().read_bytes)
  except (OSError, psutil.Error, AttributeError):  # AttributeError: no such counters.
    return None


class _Pipeline:
  """An input pipeline in a graph, run in a session."""

  def __init__(self, input_fn: InputFn, batch_size: int,
               clock: Callable[[], float]) -> None:
    self._batch_size = batch_size
    self._clock = clock
    self._iterator = tf.data.make_initializable_iterator(input_fn())
    self._elements = tf.nest.flatten(self._iterator.get_next())

  def connect(self, session: tf.Session) -> None:
    self._restart = session.make_callable(self._iterator.initializer)
    # Runs the operations without fetching: training does not copy batches to Python either.
    self._next_batch = session.make_callable(tf.group(*self._elements))
    self._fetch_pixels = session.make_callable(self._elements[0])

  def run(self, secs: float, max_batches: Optional[int],
          from_start: bool = False) -> ExamplesAndSecs:
    """Takes batches from the beginning of the data set; see `take_batches`."""
    self._restart()
    try:
      return take_batches(self._next_batch, self._batch_size, secs, max_batches, from_start,
                          self._clock)
    finally:
      self._restart()  # Ends the threads that prefetch batches.

  def first_pixels(self) -> Any:
    """Returns the pixels of the first batch, an array [batch_size, height, width, channels]."""
    self._restart()
    try:
      return self._fetch_pixels()
    finally:
      self._restart()


@contextlib.contextmanager
def _open_pipelines(input_fns: Dict[str, InputFn], settings: Settings,
                    clock: Callable[[], float]) -> Iterator[Dict[str, _Pipeline]]:
  with tf.Graph().as_default():
    pipelines = {name: _Pipeline(input_fn, settings.batch_size, clock)
                 for name, input_fn in input_fns.items()}
    config = tf.ConfigProto(device_count={'GPU': 0})
    threads.set_thread_counts(config, settings[groups.Devices])
    with tf.Session(config=config) as session:
      for pipeline in pipelines.values():
        pipeline.connect(session)
      yield pipelines


def _measure_interleaved(input_fns: Dict[str, InputFn], settings: Settings,
                         max_batches: Optional[int],
                         clock: Callable[[], float]) -> Dict[str, List[ExamplesAndSecs]]:
  """Runs the pipelines in turn, so that other load on the machine affects all of them alike."""
  passes: Dict[str, List[ExamplesAndSecs]] = {name: [] for name in input_fns}
  with _open_pipelines(input_fns, settings, clock) as opened:
    for _ in range(_WARM_PASSES):
      for name, pipeline in opened.items():
        passes[name].append(pipeline.run(_WARM_SECS, max_batches))
  return passes


def _cache_files(cache: str) -> List[Path]:
  if cache in ('none', 'memory'):
    return []
  return list(glob.glob(os.path.join(glob.escape(cache), 'images-*.npy')))


def _file_size(path: Path) -> int:
  try:
    return os.stat(path).st_size
  except OSError:
    return 0


def _bytes_expected(cold: List[ExamplesAndSecs], file_bytes_per_example: float,
                    cache_bytes_per_example: float) -> float:
  """Returns a lower bound of the bytes read by the passes, from the files or from the cache."""
  return sum(examples for examples, _ in cold) * min(file_bytes_per_example,
                                                     cache_bytes_per_example)
