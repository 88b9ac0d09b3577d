"""The hook that logs a line at the end of an epoch."""

import logging
import math
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.settings import steps_for_epochs
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.logged_steps import is_logged
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.hooks.text import count_epochs, format_duration, format_unless_nan
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class LogEpochs(tf.train.SessionRunHook):
  """Logs loss, accuracy and examples/sec at the end of an epoch.

  After the first 10,000 epochs, only some epochs are logged, see logged_steps.py. Loss and accuracy
  are means over the steps that this process ran since the previous epoch ended. A step that takes
  examples from two epochs counts for the earlier epoch.

  Args:
    schedule: the learning rate schedule, or None if the rate is unknown. The line of an epoch
      contains the rate if the rate has changed.
    num_examples: the number of examples in an epoch.
    examples_per_step: the number of examples in a global step.
    stop_step: the global step to train up to.
    counter: the step counter.
    metrics: provides the loss and the accuracy of the last step.
    clock: a function that returns the time in seconds.
  """

  def __init__(self, schedule: Optional[Schedule], num_examples: int, examples_per_step: int,
               stop_step: int, counter: StepCounter, metrics: BatchMetrics,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._schedule = schedule
    self._num_examples = num_examples
    self._examples_per_step = examples_per_step
    self._num_epochs = count_epochs(stop_step, num_examples, examples_per_step)
    self._counter = counter
    self._metrics = metrics
    self._clock = clock
    self._learning_rate: Optional[float] = None

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    # A resumed run starts in the epoch of its checkpoint: earlier epochs have been logged already.
    step = self._counter.start_step
    self._begin_epoch(step * self._examples_per_step // self._num_examples + 1, step)
    if self._schedule is not None:
      self._learning_rate = self._schedule.rate_at(step)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    # Without this check, one loss that is not finite would make the means of the epoch useless.
    if math.isfinite(self._metrics.loss):
      self._loss_sum += self._metrics.loss
      self._accuracy_sum += self._metrics.accuracy
      self._num_summed_steps += 1
    step = self._counter.global_step
    if step < self._epoch_end_step:
      return
    # Other workers may increment the global step, too, so several epochs may have ended at once.
    epoch = step * self._examples_per_step // self._num_examples
    if is_logged(epoch):
      self._log(epoch, step)
    self._begin_epoch(epoch + 1, step)

  def _log(self, epoch: int, step: int) -> None:
    """Logs the line of an epoch that has ended at the global step `step`."""
    secs = max(self._clock() - self._epoch_began_at, 1e-9)
    examples = (step - self._epoch_start_step) * self._examples_per_step
    num_steps = max(self._num_summed_steps, 1)
    _LOG.info('epoch %d/%d: loss %.4f%s, %s, %s examples/sec%s', epoch, self._num_epochs,
              self._loss_sum / num_steps,
              format_unless_nan(', accuracy {:.4f}', self._accuracy_sum / num_steps),
              format_duration(secs), '{:,.0f}'.format(examples / secs),
              self._format_changed_learning_rate(step))

  def _format_changed_learning_rate(self, step: int) -> str:
    """Returns the learning rate as text, or '' if the rate has not changed since the last line."""
    if self._schedule is None:
      return ''
    previous_rate, self._learning_rate = self._learning_rate, self._schedule.rate_at(step - 1)
    if previous_rate == self._learning_rate:
      return ''
    return ', learning rate {:g}'.format(self._learning_rate)

  def _begin_epoch(self, epoch: int, start_step: int) -> None:
    """Starts measuring an epoch at the global step `start_step`: resets the sums and the clock."""
    self._epoch_start_step = start_step
    self._epoch_end_step = steps_for_epochs(epoch, self._num_examples, self._examples_per_step)
    self._loss_sum = self._accuracy_sum = 0.
    self._num_summed_steps = 0
    self._epoch_began_at = self._clock()
