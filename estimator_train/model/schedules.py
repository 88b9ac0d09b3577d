"""Computes the learning rate of a global step.

A schedule can begin with a linear warm-up (Goyal et al. 2017, arXiv:1706.02677, section 2.2). Step
0 uses 1/warmup_steps of the full learning rate, and step warmup_steps - 1 uses the full rate. The
learning rate depends only on the global step and on the batch sizes of all steps. A resumed run
therefore continues the schedule exactly, and no checkpoint can restore an outdated learning rate.
If the batch size has changed, a warm-up or a decay is linear in the examples, not in the steps.
"""

import inspect
import math
from typing import Any, Dict, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.run_dir.step_clock import StepClock, count_examples
from estimator_train.settings import Settings, learning_rate_scale
from estimator_train.tf_patches.optimizers import register_schedules


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
  """A piecewise constant learning rate after the warm-up; the base class of all other schedules.

  Args:
    learning_rate: the learning rate after the warm-up.
    warmup_steps: 0 if there is no warm-up.
    boundaries: the global steps from which the learning rates in `values` apply.
    values: the learning rates that follow `learning_rate`, one for each boundary.
    batch_sizes: see StepClock; empty if all steps have the same batch size.
  """

  def __init__(self, learning_rate: float, warmup_steps: int = 0, boundaries: Sequence[int] = (),
               values: Sequence[float] = (), batch_sizes: Sequence[Tuple[int, int]] = ()) -> None:
    super().__init__()
    self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
    self.boundaries, self.values = list(boundaries), list(values)
    self.batch_sizes = [(step, examples) for step, examples in batch_sizes]

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    # Keras has cast the step to float32, which represents integers exactly only up to 2^24. In
    # later steps, a boundary may be off by one step.
    return tf.cast(self._compute_rate(tf.cast(step, tf.float64), tf), tf.float32)

  def rate_at(self, step: int) -> float:
    """Returns the learning rate of the training step that starts at the global step `step`."""
    return float(self._compute_rate(np.float64(step), np))

  def get_config(self) -> Dict[str, Any]:
    return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

  def __str__(self) -> str:
    warmup = ', after a warm-up of {} steps'.format(self.warmup_steps) if self.warmup_steps else ''
    return self._describe() + warmup

  def _describe(self) -> str:
    """Describes the schedule without the warm-up."""
    # Users count steps from 1. For them, the step that starts at the global step N is step N + 1.
    return ', '.join(['{:g}'.format(self.learning_rate)] + [
        '{:g} from step {}'.format(value, boundary + 1)
        for boundary, value in zip(self.boundaries, self.values)])

  def _compute_rate(self, step: Any, ops: Any) -> Any:
    """Returns the learning rate at a global step. The library `ops` is TensorFlow or NumPy."""
    rate = self._rate_after_warmup(step, ops)
    if not self.warmup_steps:
      return rate
    return ops.where(
        step < self.warmup_steps,
        self.learning_rate * self._equivalent_steps(step + 1, ops)
        / self._equivalent_steps(self.warmup_steps),
        rate)

  def _equivalent_steps(self, step: Any, ops: Any = np) -> Any:
    """Returns the number of steps of the latest batch size that would use the same examples."""
    if not self.batch_sizes:
      return step
    examples = count_examples(self.batch_sizes, step, ops.minimum, ops.maximum)
    return examples / self.batch_sizes[-1][1]

  def _rate_after_warmup(self, step: Any, ops: Any) -> Any:
    """Returns the learning rate as if there were no warm-up."""
    rate = np.float64(self.learning_rate)
    for boundary, value in zip(self.boundaries, self.values):
      rate = ops.where(step >= boundary, np.float64(value), rate)
    return rate


class Exponential(Schedule):
  """Decays the learning rate by a constant factor per step after the warm-up, down to `end_rate`.

  Args:
    end_step: the global step at which the decay ends; afterwards the learning rate is `end_rate`.
  """

  def __init__(self, learning_rate: float, end_rate: float, end_step: int, warmup_steps: int = 0,
               batch_sizes: Sequence[Tuple[int, int]] = ()) -> None:
    super().__init__(learning_rate, warmup_steps, batch_sizes=batch_sizes)
    self.end_rate = end_rate
    self.end_step = end_step

  def _describe(self) -> str:
    # The step that starts at `end_step` is the first one with the last rate. Users count steps from
    # 1. For them, it is the step after step `end_step`.
    return '{:g}, decaying to {:g} after step {} ({})'.format(
        self.learning_rate, self.end_rate, self.end_step, type(self).__name__.lower())

  def _rate_after_warmup(self, step: Any, ops: Any) -> Any:
    factor = self.end_rate / self.learning_rate
    return self.learning_rate * factor ** self._decay_fraction(step, ops)

  def _decay_fraction(self, step: Any, ops: Any) -> Any:
    """Returns the completed fraction of the decay, from 0 to 1."""
    begin = self._equivalent_steps(self.warmup_steps)
    end = self._equivalent_steps(self.end_step)
    return ops.minimum((self._equivalent_steps(step, ops) - begin) / (end - begin), 1.)


class Cosine(Exponential):
  """Decays the learning rate along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

  def _rate_after_warmup(self, step: Any, ops: Any) -> Any:
    return self.end_rate + (self.learning_rate - self.end_rate) * (
        1. + ops.cos(math.pi * self._decay_fraction(step, ops))) / 2.


_DECAY_SCHEDULES = {'exponential': Exponential, 'cosine': Cosine}
register_schedules(Schedule, Exponential, Cosine)


def make_schedule(settings: Settings, clock: StepClock, last_step: int) -> Schedule:
  """Makes the learning rate schedule of the settings, with epochs converted to steps.

  The learning rates of the settings apply to `--base_batch_size`. `--scale_learning_rate` specifies
  how they are scaled to the batch size.

  Raises:
    UserError: a flag is given in epochs although the data set is infinite, or the warm-up leaves no
      step for the decay.
  """
  def step_at_epoch(flag: str, epochs: float) -> int:
    if epochs and clock.num_examples is None:
      raise UserError('an infinite data set has no epochs',
                      '--dataset={} --{}={}'.format(settings.data.dataset, flag, epochs),
                      'omit --' + flag)
    return clock.step_at_epoch(epochs) if epochs else 0

  scale = learning_rate_scale(settings.optimizer)
  rate = settings.optimizer.learning_rate * scale
  warmup_steps = step_at_epoch('lr_warmup_epochs', settings.optimizer.lr_warmup_epochs)
  boundaries = [step_at_epoch('lr_boundaries_epochs', epochs)
                for epochs in settings.optimizer.lr_boundaries_epochs]
  values = [value * scale for value in settings.optimizer.lr_values]
  batch_sizes = clock.batch_sizes if len(clock.batch_sizes) > 1 else ()
  if settings.optimizer.lr_schedule == 'constant':
    return Schedule(rate, warmup_steps, batch_sizes=batch_sizes)
  if settings.optimizer.lr_schedule == 'piecewise':
    return Schedule(values[0], warmup_steps, boundaries, values[1:], batch_sizes)
  end_step = boundaries[0] if boundaries else last_step
  if warmup_steps >= end_step:
    raise UserError('the warm-up must end before the decay of the learning rate ends',
                    '--lr_warmup_epochs={} is {} steps, and the decay ends at step {}'.format(
                        settings.optimizer.lr_warmup_epochs, warmup_steps, end_step),
                    'give a shorter --lr_warmup_epochs, or train longer')
  end_rate = values[0] if values else 0.
  return _DECAY_SCHEDULES[settings.optimizer.lr_schedule](
      rate, end_rate, end_step, warmup_steps, batch_sizes)
