"""The hook that logs the end of each epoch, and its learning rate."""

import logging
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_train.settings import steps_of_epochs
from estimator_train.training.hooks.logged_steps import is_logged
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class LogEpochs(tf.train.SessionRunHook):
  """Logs the learning rate of each epoch's last step when it has been taken; of later ones fewer.

  Args:
    schedule: the learning rate.
    num_examples: of an epoch.
    examples_per_step: of a global step.
    counter: counts the steps.
  """

  def __init__(self, schedule: Schedule, num_examples: int, examples_per_step: int,
               counter: StepCounter) -> None:
    self._schedule = schedule
    self._num_examples = num_examples
    self._examples_per_step = examples_per_step
    self._counter = counter
    self._begin(1)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    # A resumed run logs no epoch that had ended before.
    self._begin(self._counter.first_step * self._examples_per_step // self._num_examples + 1)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    while self._end <= self._counter.global_step:
      if is_logged(self._epoch):
        _LOG.info('epoch %d ends at step %d: learning rate %g', self._epoch, self._end,
                  self._schedule.rate_at(self._end - 1))
      self._begin(self._epoch + 1)

  def _begin(self, epoch: int) -> None:
    self._epoch = epoch
    self._end = steps_of_epochs(epoch, self._num_examples, self._examples_per_step)
