"""Measures the rates of the input pipeline and its stages, and of a model that waits for no input.

A pass of the input reads examples from the beginning of the data set for a limited time. The model
trains on one synthetic batch, which is repeated.
"""

import contextlib
import glob
import math
import os
from array import array
from time import perf_counter as clock
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import arrays, opening
from estimator_train.data.source import FilePath, InputFn
from estimator_train.distribution import devices
from estimator_train.errors import TrainingFailed
from estimator_train.settings.flags import DeviceFlags
from estimator_train.system import storage
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.run import Run

# (number of examples, seconds) of a pass of the input, or of a segment of training steps.
ExamplesAndSecs = Tuple[int, float]

_MIN_BATCHES = 3
_COLD_PASS_SECS = 4.
_NUM_WARM_PASSES, _WARM_PASS_SECS = 5, 0.5
# The warm-up ends after --throughput_warmup_steps steps, but at the latest after this time. Without
# this limit, the warm-up of a large network on a CPU would take minutes.
_MAX_WARMUP_SECS = 5.
_MIN_TIMED_SECS, _MIN_TIMED_STEPS, _MAX_SEGMENTS = 4., 3, 5


class InputMeasurement(NamedTuple):
  """The measurements of an input pipeline.

  Attributes:
    num_examples: the number of examples per epoch; None for infinite data.
    prepare_secs: the time from making the input to the start of the first pass.
    cold_pass: the first pass, at whose start no file was in the page cache. With `--cache`, it was
      a whole epoch, which filled the cache.
    warm_passes: passes that read only examples that had been read before.
    stage_passes: the passes of each stage of the pipeline, such as read, decode, resize and batch.
      A pass ran this stage and the stages before it, so the passes of the last stage ran the whole
      pipeline.
    image_shape: the shape of the pixels in a batch.
  """
  format_name: str
  num_examples: Optional[int]
  prepare_secs: float
  cold_pass: ExamplesAndSecs
  warm_passes: List[ExamplesAndSecs]
  stage_passes: Dict[str, List[ExamplesAndSecs]]
  image_shape: Tuple[int, int, int]
  pixels_dtype: str


def measure_input(run: Run, one_hot: bool) -> InputMeasurement:
  """Measures the input pipeline of training at the global batch size.

  Without a cache, the passes take a few seconds in total, regardless of the size of the data set.
  Warm passes read only examples that the cold pass has read.

  Raises:
    UserError: there is not enough memory or disk space for the cache.
    tf.errors.OpError: a file cannot be read.
  """
  settings, source = run.settings, run.data.train
  batch_size = settings.optimizer.batch_size
  assert source is not None
  num_examples = source.num_examples
  plan = opening.make_input_settings(source, settings, one_hot, batch_size)
  cache = opening.resolve_cache(source, settings.input)
  is_cached = cache != 'none' or source.is_in_memory
  num_batches = None if num_examples is None else math.ceil(num_examples / batch_size)
  files: List[FilePath] = [*source.list_files(), *(
      () if cache in ('none', 'memory')
      else glob.glob(os.path.join(glob.escape(cache), 'images-*.npy')))]
  # Evicts the files from the page cache of the kernel, which keeps pages that are in use.
  storage.advise_kernel(files, os.POSIX_FADV_DONTNEED)
  start_time = clock()
  train_input_fn = opening.make_train_input_fn(source, settings, *plan)
  with _open_pipelines({'train': train_input_fn}, settings.devices) as pipelines:
    prepare_secs = clock() - start_time
    cold_pass = pipelines['train'].run_pass(
        batch_size, _COLD_PASS_SECS if cache == 'none' or num_batches is None else math.inf,
        num_batches)
    source.wait_until_cached()
    pixels = pipelines['train'].read_pixels()
  num_cold_batches = cold_pass[0] // batch_size
  max_batches = None
  if not is_cached and num_batches is not None and num_cold_batches < num_batches:
    max_batches = num_cold_batches - 1  # A warm pass also reads one batch that is not timed.
  stage_input_fns: Dict[str, InputFn] = {}
  if settings.input.input_pipeline != 'published' and source.last_stage is not None:
    stage_input_fns = {'batch': train_input_fn} if is_cached else dict(
        source.make_stage_input_fns(*plan), **{source.last_stage: train_input_fn})
  with _open_pipelines(stage_input_fns or {'train': train_input_fn},
                       settings.devices) as pipelines:
    passes_by_stage: Dict[str, List[ExamplesAndSecs]] = {name: [] for name in pipelines}
    # The pipelines run in turn, so that other load on the machine affects all of them alike.
    for _ in range(_NUM_WARM_PASSES):
      for name, pipeline in pipelines.items():
        passes_by_stage[name].append(pipeline.run_pass(batch_size, _WARM_PASS_SECS, max_batches,
                                                       skip_first_batch=True))
  return InputMeasurement(
      source.format_name, num_examples, prepare_secs, cold_pass, list(passes_by_stage.values())[-1],
      passes_by_stage if stage_input_fns else {}, pixels.shape[1:], pixels.dtype.name)


class _Pipeline(NamedTuple):
  """An input pipeline in a session.

  Attributes:
    restart: starts again at the first example.
    read_pixels: reads a batch, and returns its pixels [batch_size, height, width, channels].
  """
  restart: Callable[[], None]
  read_batch: Callable[[], None]
  read_pixels: Callable[[], np.ndarray]

  def run_pass(self, batch_size: int, secs: float, max_batches: Optional[int],
               skip_first_batch: bool = False) -> ExamplesAndSecs:
    """Reads batches from the beginning of the data set for `secs`, but at least _MIN_BATCHES.

    Args:
      max_batches: the maximum number of batches; None for no limit.
      skip_first_batch: whether the first batch is neither timed nor counted. It is slow, because
        the shuffle buffer is filled before it.
    """
    start_time = clock()
    self.restart()
    if skip_first_batch:
      self.read_batch()
      start_time = clock()
    num_batches, elapsed = 0, 0.
    limit = math.inf if max_batches is None else max(max_batches, _MIN_BATCHES)
    while num_batches < _MIN_BATCHES or (num_batches < limit and elapsed < secs):
      self.read_batch()
      num_batches += 1
      elapsed = clock() - start_time
    self.restart()  # Stops prefetching, which would slow the next pass of another pipeline.
    return num_batches * batch_size, elapsed


@contextlib.contextmanager
def _open_pipelines(input_fns: Dict[str, InputFn],
                    flags: DeviceFlags) -> Iterator[Dict[str, _Pipeline]]:
  """Builds a pipeline for each `input_fn`, and yields the pipelines by name, ready to run."""
  with tf.Graph().as_default():
    iterators = {name: tf.data.make_initializable_iterator(input_fn())
                 for name, input_fn in input_fns.items()}
    tensors = {name: tf.nest.flatten(iterator.get_next()) for name, iterator in iterators.items()}
    config = devices.make_cpu_config()
    devices.set_thread_counts(config, flags)
    with tf.Session(config=config) as session:
      # tf.group fetches no values, because training does not copy batches to Python either.
      yield {name: _Pipeline(session.make_callable(iterator.initializer),
                             session.make_callable(tf.group(*tensors[name])),
                             session.make_callable(tensors[name][0]))
             for name, iterator in iterators.items()}


def measure_model(run: Run, model: PreparedModel,
                  measurement: InputMeasurement) -> List[ExamplesAndSecs]:
  """Trains on one synthetic batch for a few seconds, and returns segments of the timed steps.

  Args:
    measurement: the measurement of the input, whose batches have the same shape and dtype.

  Raises:
    TrainingFailed: the loss is not finite.
  """
  batch_input_fn = arrays.make_synthetic_input_fn(
      measurement.image_shape, run.settings.optimizer.seed,
      opening.make_batch_settings(run.data.spec, run.settings, model.one_hot,
                                  run.engine.examples_per_replica), num_batches=1)

  @tf.autograph.experimental.do_not_convert
  def cast_pixels(pixels: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(pixels, measurement.pixels_dtype), labels

  rate_timer = RateTimer(run.settings.reporting.throughput_warmup_steps)
  try:
    model.training_estimator.train(lambda: batch_input_fn().map(cast_pixels).cache().repeat(),
                                   hooks=[rate_timer])
  except tf.train.NanLossDuringTrainingError as error:
    raise TrainingFailed('the loss on synthetic images is not finite') from error
  return rate_timer.split_into_segments(run.settings.optimizer.batch_size)


class RateTimer(tf.train.SessionRunHook):
  """Records when steps end, and stops the training after enough steps to compute a rate.

  Attributes:
    end_times: the clock at the end of the last warm-up step and of each later step, in seconds.
  """

  def __init__(self, warmup_steps: int) -> None:
    self.end_times = array('d')
    self._warmup_steps = warmup_steps
    self._steps_run = 0
    self._first_step_end_time: Optional[float] = None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    now = clock()
    self._steps_run += 1
    if self._first_step_end_time is None:
      self._first_step_end_time = now
    # The first step includes the start-up, and is a warm-up step even if the warm-up has 0 steps.
    warmup_is_over = (self._steps_run >= self._warmup_steps
                      or now - self._first_step_end_time >= _MAX_WARMUP_SECS)
    if self.end_times or warmup_is_over:
      self.end_times.append(now)
    if len(self.end_times) > _MIN_TIMED_STEPS and now - self.end_times[0] >= _MIN_TIMED_SECS:
      run_context.request_stop()

  def split_into_segments(self, batch_size: int) -> List[ExamplesAndSecs]:
    """Returns at most _MAX_SEGMENTS segments with about equal numbers of steps."""
    num_steps = len(self.end_times) - 1
    num_segments = min(_MAX_SEGMENTS, num_steps)
    boundaries = [num_steps * index // num_segments for index in range(num_segments + 1)]
    return [((end - start) * batch_size, self.end_times[end] - self.end_times[start])
            for start, end in zip(boundaries, boundaries[1:])]
