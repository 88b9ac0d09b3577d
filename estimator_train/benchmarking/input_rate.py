"""Measures how fast the input pipeline and its stages deliver examples from disk and memory."""

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
from estimator_train.inputs.source import FilePath, InputFn
from estimator_train.settings import Settings, groups

# (number of examples, seconds) of a pass.
ExamplesAndSecs = Tuple[int, float]

_MIN_BATCHES = 3
_NUM_COLD_PASSES, _COLD_PASS_SECS = 3, 1.5
_NUM_WARM_PASSES, _WARM_PASS_SECS = 5, 0.5


class InputMeasurement(NamedTuple):
  """The measurements of an input pipeline.

  A pass reads examples from the beginning of the data set for a limited time.

  Attributes:
    num_examples: number of examples per epoch; None for infinite data.
    prepare_secs: seconds of the preparation before the first pass, such as filling the cache.
    cold_passes: passes that started with no file in the page cache. If the examples are cached,
      the list has only one pass.
    warm_passes: passes that read only examples that had been read before.
    stage_passes: for each stage of the pipeline (such as read, decode, resize and batch), in order,
      the passes that ran only this stage and the stages before it. The passes of the last stage ran
      the whole pipeline.
    bytes_per_example: size of the files on disk per example; None if there are no files.
    bytes_from_storage: bytes that the kernel read from storage during the preparation and the cold
      passes; None if the kernel does not report this number.
    min_bytes_if_cold: the least number that `bytes_from_storage` can be if no file was in the page
      cache.
    image_shape: (height, width, channels) of the pixels in a batch.
    pixels_dtype: name of the dtype of the pixels.
  """
  num_examples: Optional[int]
  prepare_secs: float
  cold_passes: List[ExamplesAndSecs]
  warm_passes: List[ExamplesAndSecs]
  stage_passes: Dict[str, List[ExamplesAndSecs]]
  bytes_per_example: Optional[float]
  bytes_from_storage: Optional[int]
  min_bytes_if_cold: float
  image_shape: Tuple[int, int, int]
  pixels_dtype: str


def measure(dataset: DataSet, settings: Settings, one_hot: bool,
            num_examples: Optional[int],
            clock: Callable[[], float] = time.perf_counter) -> InputMeasurement:
  """Measures the input pipeline of training at the global batch size.

  The passes take a few seconds in total, regardless of the size of the data set. A cache is
  filled completely before the first pass. Warm passes read only examples that the cold passes have
  read.

  Args:
    dataset: data set to train on.
    settings: settings of the run.
    one_hot: whether labels are one-hot encoded.
    num_examples: number of examples per epoch; None for infinite data.
    clock: returns the time in seconds.

  Raises:
    UserError: there is not enough memory or disk space for the cache.
    tf.errors.OpError: a file cannot be read.
  """
  source = factory.make_source(dataset, dataset.train)
  batching = factory.make_batching(dataset, settings, one_hot, settings.batch_size)
  cache = factory.resolve_cache(dataset, settings[groups.Input])
  is_cached = cache != 'none' or source.is_in_memory
  files = source.files()
  files_to_evict = files + _find_cache_files(cache)
  num_batches = None if num_examples is None else math.ceil(num_examples / settings.batch_size)
  evict_from_page_cache(files_to_evict)
  bytes_before, began = bytes_read_from_storage(), clock()
  train_input_fn = factory.make_train_input_fn_of(source, settings, batching)
  source.wait_until_cached()
  prepare_secs = clock() - began
  with _open_pipelines({'train': train_input_fn}, settings, clock) as pipelines:
    cold_passes = []
    # With a cache, a second pass would not be cold: the examples are in memory by now, or in a
    # mapped file whose pages the kernel does not evict.
    for pass_index in range(1 if is_cached else _NUM_COLD_PASSES):
      if pass_index:
        evict_from_page_cache(files_to_evict)
      cold_passes.append(pipelines['train'].run_pass(
          _COLD_PASS_SECS, num_batches, include_first_batch=True))
    bytes_after = bytes_read_from_storage()
    pixels = pipelines['train'].fetch_first_pixels()
  batches_read = min(examples for examples, _ in cold_passes) // settings.batch_size
  max_batches = None
  if not is_cached and num_batches is not None and batches_read < num_batches:
    max_batches = batches_read - 1  # A warm pass takes one more batch, which is not timed.
  stage_input_fns = {} if settings.input_pipeline == 'published' else source.stage_input_fns(
      batching, is_cached, train_input_fn)
  warm_passes = _run_warm_passes(stage_input_fns or {'train': train_input_fn}, settings,
                                 max_batches, clock)
  file_bytes = sum(map(_file_size, files))
  bytes_per_example = file_bytes / num_examples if files and num_examples else None
  return InputMeasurement(
      num_examples, prepare_secs, cold_passes, list(warm_passes.values())[-1],
      warm_passes if stage_input_fns else {}, bytes_per_example,
      None if bytes_before is None or bytes_after is None else bytes_after - bytes_before,
      _min_bytes_read(cold_passes, bytes_per_example or 0.,
                      pixels.nbytes / len(pixels) if is_cached else math.inf),
      pixels.shape[1:], pixels.dtype.name)


def take_batches(next_batch: Callable[[], Any], batch_size: int, secs: float,
                 max_batches: Optional[int], include_first_batch: bool,
                 clock: Callable[[], float] = time.perf_counter) -> ExamplesAndSecs:
  """Takes batches for a given time, but at least _MIN_BATCHES.

  Args:
    next_batch: gets the next batch.
    batch_size: examples per batch.
    secs: seconds after which no more batches are taken.
    max_batches: maximum number of batches; None for no limit.
    include_first_batch: whether to time and count the first batch. The first batch is slow, for
      example because the shuffle buffer is filled first.
    clock: returns the time in seconds.

  Returns:
    The number of examples in the batches, and the seconds in which they were taken.
  """
  if not include_first_batch:
    next_batch()
  batches, began = 0, clock()
  limit = math.inf if max_batches is None else max(max_batches, _MIN_BATCHES)
  while True:
    next_batch()
    batches += 1
    elapsed = clock() - began
    if batches >= limit or (batches >= _MIN_BATCHES and elapsed >= secs):
      return batches * batch_size, elapsed


def evict_from_page_cache(paths: Iterable[FilePath]) -> None:
  """Asks the kernel to evict files from its page cache. The kernel keeps pages that are in use."""
  for path in paths:
    with contextlib.suppress(OSError):  # The input pipeline will report files that cannot be read.
      descriptor = os.open(path, os.O_RDONLY)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
      finally:
        os.close(descriptor)


def bytes_read_from_storage() -> Optional[int]:
  """Returns the bytes that the kernel read from storage for this process; None if unknown."""
  try:
    return int(psutil.Process().io_counters().read_bytes)
  except (OSError, psutil.Error, AttributeError):  # AttributeError: this system has no io_counters.
    return None


class _Pipeline:
  """An input pipeline that is built in the default graph and then run in a session."""

  def __init__(self, input_fn: InputFn, batch_size: int,
               clock: Callable[[], float]) -> None:
    self._batch_size = batch_size
    self._clock = clock
    self._iterator = tf.data.make_initializable_iterator(input_fn())
    self._tensors = tf.nest.flatten(self._iterator.get_next())

  def make_callables(self, session: tf.Session) -> None:
    """Sets the session in which the pipeline runs; must be called before the other methods."""
    self._restart = session.make_callable(self._iterator.initializer)
    # tf.group fetches no values, because training does not copy batches to Python either.
    self._next_batch = session.make_callable(tf.group(*self._tensors))
    self._fetch_pixels = session.make_callable(self._tensors[0])

  def run_pass(self, secs: float, max_batches: Optional[int],
               include_first_batch: bool = False) -> ExamplesAndSecs:
    """Takes batches from the beginning of the data set; see `take_batches`."""
    self._restart()
    try:
      return take_batches(self._next_batch, self._batch_size, secs, max_batches,
                          include_first_batch, self._clock)
    finally:
      self._restart()  # Stops prefetching, which would slow the next pass of another pipeline.

  def fetch_first_pixels(self) -> Any:
    """Returns the pixels of the first batch, an array [batch_size, height, width, channels]."""
    self._restart()
    try:
      return self._fetch_pixels()
    finally:
      self._restart()


@contextlib.contextmanager
def _open_pipelines(input_fns: Dict[str, InputFn], settings: Settings,
                    clock: Callable[[], float]) -> Iterator[Dict[str, _Pipeline]]:
  """Builds a pipeline for each `input_fn`, and yields the pipelines by name, ready to run."""
  with tf.Graph().as_default():
    pipelines = {name: _Pipeline(input_fn, settings.batch_size, clock)
                 for name, input_fn in input_fns.items()}
    config = tf.ConfigProto(device_count={'GPU': 0})
    threads.set_thread_counts(config, settings[groups.Devices])
    with tf.Session(config=config) as session:
      for pipeline in pipelines.values():
        pipeline.make_callables(session)
      yield pipelines


def _run_warm_passes(input_fns: Dict[str, InputFn], settings: Settings,
                     max_batches: Optional[int],
                     clock: Callable[[], float]) -> Dict[str, List[ExamplesAndSecs]]:
  """Returns the passes of each pipeline by its name.

  The pipelines run in turn, so that other load on the machine affects all pipelines alike.
  """
  passes: Dict[str, List[ExamplesAndSecs]] = {name: [] for name in input_fns}
  with _open_pipelines(input_fns, settings, clock) as pipelines:
    for _ in range(_NUM_WARM_PASSES):
      for name, pipeline in pipelines.items():
        passes[name].append(pipeline.run_pass(_WARM_PASS_SECS, max_batches))
  return passes


def _find_cache_files(cache: str) -> List[FilePath]:
  """Returns the files with cached images if the cache is a folder, else an empty list."""
  if cache in ('none', 'memory'):
    return []
  return list(glob.glob(os.path.join(glob.escape(cache), 'images-*.npy')))


def _file_size(path: FilePath) -> int:
  try:
    return os.stat(path).st_size
  except OSError:
    return 0


def _min_bytes_read(cold_passes: List[ExamplesAndSecs], file_bytes_per_example: float,
                    cache_bytes_per_example: float) -> float:
  """Returns the minimum number of bytes that cold passes read from the files or from the cache."""
  return sum(examples for examples, _ in cold_passes) * min(file_bytes_per_example,
                                                            cache_bytes_per_example)
