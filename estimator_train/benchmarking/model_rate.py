"""How fast a model trains when its input costs nothing."""

import time
from array import array
from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.inputs import factory as inputs, synthetic
from estimator_train.training.plan import Plan
from estimator_train.training.prepared_model import PreparedModel

# A warm-up is over after --throughput_warmup_steps, or after this: of a large network on a CPU,
# every step takes seconds.
_WARMUP_SECS = 5.
_SECS, _MIN_STEPS, _STRETCHES = 4., 3, 5

# Examples, and the seconds that they took.
Pass = Tuple[int, float]


def measure(plan: Plan, model: PreparedModel, image_shape: Tuple[int, int, int],
            pixels_dtype: str) -> List[Pass]:
  """Trains for a few seconds on one synthetic batch, over and over.

  Args:
    plan: of a run in a `model_dir` that is for nothing else.
    model: to train.
    image_shape: (height, width, C) of the pixels that the input delivers.
    pixels_dtype: of them.

  Returns:
    (examples, seconds) of some stretches of steps, one after the other.

  Raises:
    TrainingFailed: the loss was not finite.
  """
  batching = inputs.make_batching(plan.data.dataset, plan.settings, model.one_hot,
                                  plan.engine.batch_size)._replace(image_shape=image_shape)
  clock = StepClock(plan.settings.throughput_warmup_steps)
  try:
    model.training_estimator.train(
        _make_input_fn(synthetic.make_input_fn(batching, 1), pixels_dtype), hooks=[clock])
  except tf.train.NanLossDuringTrainingError as error:
    raise TrainingFailed('the loss on synthetic images is not finite') from error
  return stretches(clock.ended, plan.settings.batch_size, _STRETCHES)


class StepClock(tf.train.SessionRunHook):
  """Keeps when the steps ended, and ends the training when that is enough to tell their rate.

  Attributes:
    ended: seconds, at the end of the last step of the warm-up and of each step after it.
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
    if self._first is None:  # This step took what it takes to get started.
      self._first = now
    if self.ended or self._steps >= self._warmup_steps or now - self._first >= _WARMUP_SECS:
      self.ended.append(now)
    if len(self.ended) > _MIN_STEPS and now - self.ended[0] >= _SECS:
      run_context.request_stop()


def stretches(ended: Sequence[float], batch_size: int, most: int) -> List[Pass]:
  """Returns (examples, seconds) of up to `most` stretches of about as many steps each.

  Args:
    ended: seconds, at the beginning of the first step and at the end of each.
    batch_size: examples a step.
    most: stretches.
  """
  steps = len(ended) - 1
  count = min(most, steps)
  edges = [steps * number // count for number in range(count + 1)]
  return [((last - first) * batch_size, ended[last] - ended[first])
          for first, last in zip(edges, edges[1:])]


def _make_input_fn(one_batch: inputs.InputFn, dtype: str) -> inputs.InputFn:
  @tf.autograph.experimental.do_not_convert
  def cast(pixels: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(pixels, dtype), labels

  return lambda: one_batch().map(cast).cache().repeat()
