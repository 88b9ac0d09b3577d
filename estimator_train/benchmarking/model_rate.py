"""Measures the training rate of the model alone, on a synthetic batch."""

import time
from array import array
from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.inputs import arrays, factory as inputs
from estimator_train.training.model import Model
from estimator_train.training.run import Run

# The warm-up ends after --throughput_warmup_steps steps or after this time, whichever comes first.
# Without this limit, the warm-up of a large network on a CPU would take minutes.
_MAX_WARMUP_SECS = 5.
_MIN_TIMED_SECS, _MIN_TIMED_STEPS, _MAX_SEGMENTS = 4., 3, 5

# (number of examples, seconds) of a segment of consecutive steps.
ExamplesAndSecs = Tuple[int, float]


def measure(run: Run, model: Model, image_shape: Tuple[int, int, int],
            pixels_dtype: str) -> List[ExamplesAndSecs]:
  """Trains for a few seconds on one synthetic batch, which is repeated.

  Args:
    run: settings, data and engine (devices and processes) of a training run in a temporary
      `model_dir`.
    model: model to train.
    image_shape: (height, width, channels) of an image that the input pipeline delivers.
    pixels_dtype: name of the dtype of the pixels of this image.

  Returns:
    The examples and seconds of each segment of the timed steps.

  Raises:
    TrainingFailed: the loss is not finite.
  """
  batching = inputs.make_batching(
      run.data.dataset, run.settings, model.one_hot,
      run.engine.examples_per_replica)._replace(image_shape=image_shape)
  step_timer = StepTimer(run.settings.throughput_warmup_steps)
  try:
    model.training_estimator.train(_make_input_fn(
        arrays.make_synthetic_input_fn(batching, 1), pixels_dtype), hooks=[step_timer])
  except tf.train.NanLossDuringTrainingError as error:
    raise TrainingFailed('the loss on synthetic images is not finite') from error
  return split_into_segments(step_timer.end_times, run.settings.batch_size, _MAX_SEGMENTS)


class StepTimer(tf.train.SessionRunHook):
  """Records when steps end, and stops the training after enough steps to compute a rate.

  Attributes:
    end_times: the clock at the end of the last warm-up step and of each later step, in seconds.
  """

  def __init__(self, warmup_steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
    self.end_times = array('d')
    self._clock = clock
    self._warmup_steps = warmup_steps
    self._steps_run = 0
    self._first_step_end_time: Optional[float] = None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    now = self._clock()
    self._steps_run += 1
    if self._first_step_end_time is None:
      self._first_step_end_time = now
    # The first step includes start-up, so it is a warm-up step even if the warm-up has 0 steps.
    warmup_is_over = (self._steps_run >= self._warmup_steps
                      or now - self._first_step_end_time >= _MAX_WARMUP_SECS)
    if self.end_times or warmup_is_over:
      self.end_times.append(now)
    if len(self.end_times) > _MIN_TIMED_STEPS and now - self.end_times[0] >= _MIN_TIMED_SECS:
      run_context.request_stop()


def split_into_segments(step_edges: Sequence[float], batch_size: int,
                        max_segments: int) -> List[ExamplesAndSecs]:
  """Splits steps into segments of about the same length.

  Returns the examples and seconds of each segment.

  Args:
    step_edges: start of the first step, then the end of each step, in seconds.
    batch_size: examples per step.
    max_segments: maximum number of segments.
  """
  num_steps = len(step_edges) - 1
  num_segments = min(max_segments, num_steps)
  segment_edges = [num_steps * number // num_segments for number in range(num_segments + 1)]
  return [((end - start) * batch_size, step_edges[end] - step_edges[start])
          for start, end in zip(segment_edges, segment_edges[1:])]


def _make_input_fn(batch_input_fn: inputs.InputFn, pixels_dtype: str) -> inputs.InputFn:
  """Returns an `input_fn` that repeats one batch, whose pixels are cast to `pixels_dtype`."""
  @tf.autograph.experimental.do_not_convert
  def cast(pixels: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(pixels, pixels_dtype), labels

  return lambda: batch_input_fn().map(cast).cache().repeat()
