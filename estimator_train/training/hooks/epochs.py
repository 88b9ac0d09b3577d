"""The hook that logs each epoch when it ends."""

import logging
import math
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.settings import steps_for_epochs
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.logged_steps import is_logged
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.hooks.text import duration, epochs_of, unless_nan
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class LogEpochs(tf.train.SessionRunHook):
  """Logs loss, accuracy and examples/sec at the end of each epoch; of some after 10,000 of them.

  Loss and accuracy are means over the steps of this process since the last epoch ended. A step
  that contains the end of an epoch counts for that epoch.

  Args:
    schedule: the learning rate, which is logged when it has changed; None: it is not known.
    num_examples: of an epoch.
    examples_per_step: of a global step.
    stop_step: the global step to train up to.
    counter: counts the steps.
    metrics: has the loss and the accuracy of the step.
    clock: in seconds.
  """

  def __init__(self, schedule: Optional[Schedule], num_examples: int, examples_per_step: int,
               stop_step: int, counter: StepCounter, metrics: BatchMetrics,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._schedule = schedule
    self._num_examples = num_examples
    self._examples_per_step = examples_per_step
    self._epochs = epochs_of(stop_step, num_examples, examples_per_step)
    self._counter = counter
    self._metrics = metrics
    self._clock = clock
    self._learning_rate: Optional[float] = None

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    # A resumed run logs no epoch that had ended before.
    first_step = self._counter.first_step
    self._begin_epoch(first_step * self._examples_per_step // self._num_examples + 1, first_step)
    if self._schedule is not None:
      self._learning_rate = self._schedule.rate_at(first_step)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if math.isfinite(self._metrics.loss):  # Loss scaling skips the other steps.
      self._loss_sum += self._metrics.loss
      self._accuracy_sum += self._metrics.accuracy
      self._steps += 1
    step = self._counter.global_step
    if step < self._end_step:
      return
    # With other workers' steps in between, several epochs may have ended.
    ended = step * self._examples_per_step // self._num_examples
    if is_logged(ended):
      self._log(ended, step)
    self._begin_epoch(ended + 1, step)

  def _log(self, epoch: int, step: int) -> None:
    secs = max(self._clock() - self._began_at, 1e-9)
    examples = (step - self._first_step) * self._examples_per_step
    steps = max(self._steps, 1)
    _LOG.info('epoch %d/%d: loss %.4f%s, %s, %s examples/sec%s', epoch, self._epochs,
              self._loss_sum / steps, unless_nan(', accuracy {:.4f}', self._accuracy_sum / steps),
              duration(secs), '{:,.0f}'.format(examples / secs),
              self._format_changed_learning_rate(step))

  def _format_changed_learning_rate(self, step: int) -> str:
    if self._schedule is None:
      return ''
    before, self._learning_rate = self._learning_rate, self._schedule.rate_at(step - 1)
    if before == self._learning_rate:
      return ''
    return ', learning rate {:g}'.format(self._learning_rate)

  def _begin_epoch(self, epoch: int, first_step: int) -> None:
    self._first_step = first_step
    self._end_step = steps_for_epochs(epoch, self._num_examples, self._examples_per_step)
    self._loss_sum = self._accuracy_sum = 0.
    self._steps = 0
    self._began_at = self._clock()
