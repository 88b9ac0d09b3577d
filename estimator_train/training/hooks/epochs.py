"""The hook that tells when an epoch is through, and at which learning rate it was."""

import logging
from typing import Any, Callable

import tensorflow.compat.v1 as tf

from estimator_train.settings import steps_of_epochs
from estimator_train.training.hooks.logged_steps import is_logged
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class LogEpochs(tf.train.SessionRunHook):
  """Logs the learning rate of each epoch's last step when it has been taken; of later ones fewer.

  Args:
    schedule: the learning rate.
    num_examples: of an epoch.
    step_examples: of a global step.
    reached: returns the global step that is known to be reached.
  """

  def __init__(self, schedule: Schedule, num_examples: int, step_examples: int,
               reached: Callable[[], int]) -> None:
    self._schedule = schedule
    self._num_examples = num_examples
    self._step_examples = step_examples
    self._reached = reached
    self._begin(1)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    step = int(session.run(tf.train.get_global_step()))
    # A resumed run tells of no epoch that was through before.
    self._begin(step * self._step_examples // self._num_examples + 1)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    step = self._reached()
    while self._end <= step:
      if is_logged(self._epoch):
        _LOG.info('epoch %d ends at step %d: learning rate %g', self._epoch, self._end,
                  self._schedule.rate_at(self._end - 1))
      self._begin(self._epoch + 1)

  def _begin(self, epoch: int) -> None:
    self._epoch = epoch
    self._end = steps_of_epochs(epoch, self._num_examples, self._step_examples)
