"""Learning rates that depend on the global step.

Each rises linearly over the warm-up first (Goyal et al. 2017, arXiv:1706.02677, 2.2): step 0 takes
1/warmup_steps of the full rate and step warmup_steps - 1 all of it. Being functions of the global
step they go on exactly after a resume, and are no variables that a checkpoint could bring back.
"""

import math
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.settings import Settings, groups, growth_of_learning_rate, steps_of_epochs
from estimator_train.tf_patches import model_to_estimator


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
  """The full rate, from the end of the warm-up on.

  Args:
    learning_rate: the full rate.
    warmup_steps: 0 for the full rate from the start.
  """

  def __init__(self, learning_rate: float, warmup_steps: int = 0) -> None:
    super().__init__()
    self.learning_rate = learning_rate
    self.warmup_steps = warmup_steps

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    # float32 holds no more than 2^24 steps one by one. Keras itself has cast the step to that by
    # now, so beyond it a boundary may be a step off.
    return tf.cast(self._at(tf.cast(step, tf.float64), tf), tf.float32)

  def rate_at(self, step: int) -> float:
    """Returns the rate of the update that takes the global step from this one to the next."""
    return float(self._at(np.float64(step), np))

  def get_config(self) -> Dict[str, Any]:
    return {'learning_rate': self.learning_rate, 'warmup_steps': self.warmup_steps}

  def __str__(self) -> str:
    warmup = ', after a warm-up of {} steps'.format(self.warmup_steps) if self.warmup_steps else ''
    return self._course() + warmup

  def _course(self) -> str:
    return '{:g}'.format(self.learning_rate)

  def _at(self, step: Any, ops: Any) -> Any:
    """Returns the rate, by the operations of TensorFlow or of NumPy."""
    rate = self._after_warmup(step, ops)
    if not self.warmup_steps:
      return rate
    return ops.where(step < self.warmup_steps,
                     self.learning_rate * (step + 1) / self.warmup_steps, rate)

  def _after_warmup(self, step: Any, ops: Any) -> Any:
    return np.float64(self.learning_rate)


class Piecewise(Schedule):
  """One rate after the other, the first from the end of the warm-up on.

  Args:
    values: the rates.
    boundaries: the steps from which the second and each further one hold.
    warmup_steps: as of Schedule.
  """

  def __init__(self, values: Sequence[float], boundaries: Sequence[int],
               warmup_steps: int = 0) -> None:
    super().__init__(values[0], warmup_steps)
    self.values = list(values)
    self.boundaries = list(boundaries)

  def get_config(self) -> Dict[str, Any]:
    return {'values': self.values, 'boundaries': self.boundaries,
            'warmup_steps': self.warmup_steps}

  def _course(self) -> str:
    return ', '.join([super()._course()] + [
        '{:g} from step {}'.format(value, boundary + 1)
        for boundary, value in zip(self.boundaries, self.values[1:])])

  def _after_warmup(self, step: Any, ops: Any) -> Any:
    rate = np.float64(self.values[0])
    for boundary, value in zip(self.boundaries, self.values[1:]):
      rate = ops.where(step >= boundary, np.float64(value), rate)
    return rate


class Exponential(Schedule):
  """Falls from the end of the warm-up on, by the same factor in each step, and then stays.

  Args:
    learning_rate: the full rate.
    end_rate: what it falls to.
    end_step: where it has.
    warmup_steps: as of Schedule.
  """

  def __init__(self, learning_rate: float, end_rate: float, end_step: int,
               warmup_steps: int = 0) -> None:
    super().__init__(learning_rate, warmup_steps)
    self.end_rate = end_rate
    self.end_step = end_step

  def get_config(self) -> Dict[str, Any]:
    return dict(super().get_config(), end_rate=self.end_rate, end_step=self.end_step)

  def _course(self) -> str:
    return '{:g}, falling to {:g} at step {} ({})'.format(
        self.learning_rate, self.end_rate, self.end_step, type(self).__name__.lower())

  def _after_warmup(self, step: Any, ops: Any) -> Any:
    return self.learning_rate * (self.end_rate / self.learning_rate) ** self._fallen(step, ops)

  def _fallen(self, step: Any, ops: Any) -> Any:
    """Returns how much of the way down is done, from 0 to 1."""
    return ops.minimum((step - self.warmup_steps) / (self.end_step - self.warmup_steps), 1.)


class Cosine(Exponential):
  """Falls along half a cosine instead (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

  def _after_warmup(self, step: Any, ops: Any) -> Any:
    return self.end_rate + (self.learning_rate - self.end_rate) * (
        1. + ops.cos(math.pi * self._fallen(step, ops))) / 2.


_FALLING = {'exponential': Exponential, 'cosine': Cosine}
model_to_estimator.register_schedules(Schedule, Piecewise, Exponential, Cosine)


def make(settings: Settings, num_examples: Optional[int], step_examples: int,
         stop_step: int) -> Schedule:
  """Makes the schedule that the settings ask for, in steps.

  Args:
    settings: the rates, those of `--base_batch_size`, and epochs.
    num_examples: the examples of an epoch; None where the data set has no end.
    step_examples: of a global step.
    stop_step: the end of training.

  Raises:
    UserError: epochs of a data set without end, or a warm-up that leaves no step to fall in.
    ValueError: there is no such schedule.
  """
  def steps(name: str, epochs: float) -> int:
    if epochs and num_examples is None:
      raise UserError('a data set without end has no epochs',
                      '--dataset={} --{}={}'.format(settings.dataset, name, epochs),
                      'leave --{} out'.format(name))
    return steps_of_epochs(epochs, num_examples or 0, step_examples)

  growth = growth_of_learning_rate(settings[groups.Optimizer])
  rate = settings.learning_rate * growth
  warmup_steps = steps('lr_warmup_epochs', settings.lr_warmup_epochs)
  boundaries = [steps('lr_boundaries_epochs', epochs) for epochs in settings.lr_boundaries_epochs]
  values = [value * growth for value in settings.lr_values]
  if settings.lr_schedule == 'constant':
    return Schedule(rate, warmup_steps)
  if settings.lr_schedule == 'piecewise':
    return Piecewise(values, boundaries, warmup_steps)
  if settings.lr_schedule not in _FALLING:
    raise ValueError('no schedule is implemented for {!r}'.format(settings.lr_schedule))
  end_step = boundaries[0] if boundaries else stop_step
  if warmup_steps >= end_step:
    raise UserError('the warm-up leaves no step for the learning rate to fall in',
                    '--lr_warmup_epochs={} is {} steps, and the rate is to have fallen at step {}'
                    .format(settings.lr_warmup_epochs, warmup_steps, end_step),
                    'give a shorter --lr_warmup_epochs, or train longer')
  return _FALLING[settings.lr_schedule](rate, values[0] if values else 0., end_step, warmup_steps)


def flags_of(settings: groups.Optimizer) -> List[str]:
  """Returns the flags that the learning rate of a step depends on."""
  names = ['learning_rate', 'lr_schedule', 'lr_boundaries_epochs', 'lr_values', 'lr_warmup_epochs',
           'scale_learning_rate']
  if settings.scale_learning_rate != 'none':
    names += ['base_batch_size']
  if settings.scale_learning_rate != 'none' or settings.lr_warmup_epochs or (
      settings.lr_schedule != 'constant'):
    names += ['batch_size']
  if settings.lr_schedule in ('exponential', 'cosine') and not settings.lr_boundaries_epochs:
    names += ['train_steps', 'train_epochs']
  return names
