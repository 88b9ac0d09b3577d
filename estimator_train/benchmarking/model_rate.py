"""Measures the training rate of the model alone, on a synthetic batch."""

import time
from array import array
from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.inputs import factory as inputs, synthetic
from estimator_train.training.plan import Plan
from estimator_train.training.prepared_model import PreparedModel

# The warm-up ends after --throughput_warmup_steps, or after this time if steps take seconds, as
# with a large network on a CPU.
_WARMUP_SECS = 5.
_SECS, _MIN_STEPS, _MAX_SEGMENTS = 4., 3, 5

ExamplesAndSecs = Tuple[int, float]


def measure(plan: Plan, model: PreparedModel, image_shape: Tuple[int, int, int],
            pixels_dtype: str) -> List[ExamplesAndSecs]:
  """Trains for a few seconds on one synthetic batch, which is repeated.

  Args:
    plan: plan of a run in a temporary `model_dir`.
    model: model to train.
    image_shape: (height, width, channels) of the pixels that the input delivers.
    pixels_dtype: name of their dtype.

  Returns:
    (examples, seconds) of consecutive segments of steps.

  Raises:
    TrainingFailed: the loss is not finite.
  """
  batching = inputs.make_batching(plan.data.dataset, plan.settings, model.one_hot,
                                  plan.engine.batch_size)._replace(image_shape=image_shape)
  clock = StepClock(plan.settings.throughput_warmup_steps)
  try:
    model.training_estimator.train(
        _make_input_fn(synthetic.make_input_fn(batching, 1), pixels_dtype), hooks=[clock])
  except tf.train.NanLossDuringTrainingError as error:
    raise TrainingFailed('the loss on synthetic images is not finite') from error
  return split_into_segments(clock.ended, plan.settings.batch_size, _MAX_SEGMENTS)


class StepClock(tf.train.SessionRunHook):
  """Records when steps end, and stops the training when there are enough steps to compute a rate.

  Attributes:
    ended: times in seconds at the end of the last warm-up step and of each step after it.
  """

  def __init__(self, warmup_steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
    self.ended = array('d')
    self._clock = clock
    self._warmup_steps = warmup_steps
    self._steps = 0
    self._first: Optional[float] = None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    now = self._clock()
    self._steps += 1
    if self._first is None:  # The first step includes start-up and is never timed.
      self._first = now
    if self.ended or self._steps >= self._warmup_steps or now - self._first >= _WARMUP_SECS:
      self.ended.append(now)
    if len(self.ended) > _MIN_STEPS and now - self.ended[0] >= _SECS:
      run_context.request_stop()


def split_into_segments(ended: Sequence[float], batch_size: int,
                        max_segments: int) -> List[ExamplesAndSecs]:
  """Returns (examples, seconds) of up to `max_segments` segments of about equally many steps.

  Args:
    ended: start of the first step, then the end of each step, in seconds.
    batch_size: examples per step.
    max_segments: maximum number of segments.
  """
  steps = len(ended) - 1
  count = min(max_segments, steps)
  edges = [steps * number // count for number in range(count + 1)]
  return [((last - first) * batch_size, ended[last] - ended[first])
          for first, last in zip(edges, edges[1:])]


def _make_input_fn(one_batch: inputs.InputFn, dtype: str) -> inputs.InputFn:
  @tf.autograph.experimental.do_not_convert
  def cast(pixels: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(pixels, dtype), labels

  return lambda: one_batch().map(cast).cache().repeat()
