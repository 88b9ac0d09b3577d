"""How fast the input of training is by itself: from the disk, from memory, and stage by stage."""

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

# Examples, and the seconds that they took.
Pass = Tuple[int, float]

_MIN_BATCHES = 3
_COLD_PASSES, _COLD_SECS = 3, 1.5
_WARM_PASSES, _WARM_SECS = 5, 0.5


class Measured(NamedTuple):
  """What the input of training took.

  Attributes:
    num_examples: of an epoch; None: without end.
    prepare_secs: before the first example of a run: filling the cache, say.
    cold: passes that began with the files out of memory; only the first one where there is a
      cache.
    warm: passes over examples that had been read before.
    stages: the same of each stage together with those before it, in their order; the last one is
      the whole.
    bytes_per_example: of the files, as they are stored; None where there are none.
    bytes_from_storage: what the cold passes made the kernel get; None where it does not tell.
    bytes_expected: how much that must have been, at least.
    image_shape: (height, width, C) of the pixels of a batch.
    pixels_dtype: of them.
  """
  num_examples: Optional[int]
  prepare_secs: float
  cold: List[Pass]
  warm: List[Pass]
  stages: Dict[str, List[Pass]]
  bytes_per_example: Optional[float]
  bytes_from_storage: Optional[int]
  bytes_expected: float
  image_shape: Tuple[int, int, int]
  pixels_dtype: str


def measure(dataset: DataSet, settings: Settings, one_hot: bool,
            num_examples: Optional[int],
            clock: Callable[[], float] = time.perf_counter) -> Measured:
  """Measures the input of training at the global batch size.

  Every figure takes a few seconds, however large the data set; only to fill a cache takes as long
  as it takes. Passes that are to be warm read what the cold ones have read.

  Args:
    dataset: what to train on.
    settings: of the run.
    one_hot: whether the labels are.
    num_examples: of an epoch; None: without end.
    clock: in seconds.

  Raises:
    UserError: the cache has no room.
    tf.errors.OpError: a file cannot be read.
  """
  source = factory.make_source(dataset, dataset.train)
  batching = factory.make_batching(dataset, settings, one_hot, settings.batch_size)
  cache = factory.cache_of(dataset, settings[groups.Input])
  cached = cache != 'none' or source.is_in_memory
  files = source.files()
  dropped = files + _cache_files(cache)
  epoch = None if num_examples is None else math.ceil(num_examples / settings.batch_size)
  drop_pages(dropped)
  before, began = read_bytes(), clock()
  whole = factory.make_train_input_fn(dataset, settings, one_hot, settings.batch_size)
  prepare_secs = clock() - began
  with _opened({'whole': whole}, settings, clock) as opened:
    cold = []
    # What is cached is cached by now, and its pages stay as long as they are in use.
    for number in range(1 if cached else _COLD_PASSES):
      if number:
        drop_pages(dropped)
      cold.append(opened['whole'].run(_COLD_SECS, epoch, from_start=True))
    after = read_bytes()
    pixels = opened['whole'].first()
  seen = min(examples for examples, _ in cold) // settings.batch_size
  limit = None if cached or epoch is None or seen >= epoch else seen - 1  # One is not timed.
  by_stage = source.stages(batching, cached, whole)
  warm = _interleaved(by_stage or {'whole': whole}, settings, limit, clock)
  size = sum(map(_size, files))
  each = size / num_examples if files and num_examples else None
  return Measured(
      num_examples, prepare_secs, cold, list(warm.values())[-1], warm if by_stage else {}, each,
      None if before is None or after is None else after - before,
      _bytes_expected(cold, each or 0., pixels.nbytes / len(pixels) if cached else math.inf),
      pixels.shape[1:], pixels.dtype.name)


def take(following: Callable[[], Any], batch_size: int, secs: float, max_batches: Optional[int],
         from_start: bool, clock: Callable[[], float] = time.perf_counter) -> Pass:
  """Takes batches until the time is over.

  Args:
    following: gets the next batch.
    batch_size: its examples.
    secs: the time; three batches are taken in any case.
    max_batches: to take; None: as many as there is time for.
    from_start: whether the first batch is timed, and all that was done for it, such as to fill
      the shuffle buffer.
    clock: in seconds.
  """
  if not from_start:
    following()
  batches, began = 0, clock()
  most = math.inf if max_batches is None else max(max_batches, _MIN_BATCHES)
  while True:
    following()
    batches += 1
    taken = clock() - began
    if batches >= most or (batches >= _MIN_BATCHES and taken >= secs):
      return batches * batch_size, taken


def drop_pages(paths: Iterable[Path]) -> None:
  """Asks the kernel to forget the files' contents, which it does unless others use them."""
  for path in paths:
    with contextlib.suppress(OSError):  # Whoever reads the file will tell.
      descriptor = os.open(path, os.O_RDONLY)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
      finally:
        os.close(descriptor)


def read_bytes() -> Optional[int]:
  """Returns the bytes that this process has made the kernel get from storage; None: unknown."""
  try:
    return int(psutil.Process().io_counters().read_bytes)
  except (OSError, psutil.Error, AttributeError):  # The last: a system without such counters.
    return None


class _Pipeline:
  """One dataset in an open session."""

  def __init__(self, input_fn: InputFn, batch_size: int,
               clock: Callable[[], float]) -> None:
    self._batch_size = batch_size
    self._clock = clock
    self._iterator = tf.data.make_initializable_iterator(input_fn())
    self._elements = tf.nest.flatten(self._iterator.get_next())

  def connect(self, session: tf.Session) -> None:
    self._restart = session.make_callable(self._iterator.initializer)
    # Not the tensors themselves: training does not copy them to Python either.
    self._following = session.make_callable(tf.group(*self._elements))
    self._fetch = session.make_callable(self._elements[0])

  def run(self, secs: float, max_batches: Optional[int], from_start: bool = False) -> Pass:
    self._restart()
    try:
      return take(self._following, self._batch_size, secs, max_batches, from_start,
                  self._clock)
    finally:
      self._restart()  # Ends the threads that prepare the next batches.

  def first(self) -> Any:
    """Returns the first component of the first batch, an array."""
    self._restart()
    try:
      return self._fetch()
    finally:
      self._restart()


@contextlib.contextmanager
def _opened(input_fns: Dict[str, InputFn], settings: Settings,
            clock: Callable[[], float]) -> Iterator[Dict[str, _Pipeline]]:
  with tf.Graph().as_default():
    pipelines = {name: _Pipeline(input_fn, settings.batch_size, clock)
                 for name, input_fn in input_fns.items()}
    config = tf.ConfigProto(device_count={'GPU': 0})
    threads.set_up(config, settings[groups.Devices])
    with tf.Session(config=config) as session:
      for pipeline in pipelines.values():
        pipeline.connect(session)
      yield pipelines


def _interleaved(input_fns: Dict[str, InputFn], settings: Settings,
                 max_batches: Optional[int],
                 clock: Callable[[], float]) -> Dict[str, List[Pass]]:
  """Runs the pipelines in turn, so that what else the machine does hits all of them alike."""
  passes: Dict[str, List[Pass]] = {name: [] for name in input_fns}
  with _opened(input_fns, settings, clock) as opened:
    for _ in range(_WARM_PASSES):
      for name, pipeline in opened.items():
        passes[name].append(pipeline.run(_WARM_SECS, max_batches))
  return passes


def _cache_files(cache: str) -> List[Path]:
  if cache in ('none', 'memory'):
    return []
  return list(glob.glob(os.path.join(glob.escape(cache), 'images-*.npy')))


def _size(path: Path) -> int:
  try:
    return os.stat(path).st_size
  except OSError:
    return 0


def _bytes_expected(cold: List[Pass], of_file: float, of_cache: float) -> float:
  """Returns the bytes that the passes have read at least: each of files, or of the cache."""
  return sum(examples for examples, _ in cold) * min(of_file, of_cache)
