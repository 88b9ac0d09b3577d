"""The hooks that respond to signals: one stops the training, the other saves a checkpoint."""

import logging
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.distribution.engine import Engine
from estimator_train.system.signals import SignalState
from estimator_train.training.hooks.steps import StepCounter

_LOG = logging.getLogger('estimator_train')


class StopOnSignal(tf.train.SessionRunHook):
  """After a signal, stops the training at the end of the running step or a few steps later.

  Estimator then saves a checkpoint and closes the session. Workers that train together must stop at
  the same step, because a worker that continued alone would wait forever for the other workers.
  So the worker that receives the signal announces the next step, and starts that step only after
  all other workers have confirmed the announcement: none of them can complete the step before.

  This hook must come after the hook that evaluates, because an evaluation may request a stop too.

  Args:
    signals: the signals received so far. This hook installs the signal handlers before the first
      step; before that, there is nothing to save, and a signal ends the run at once.
    engine: the engine, which announces the stop to the other workers.
    counter: the step counter.

  Attributes:
    has_stopped: whether this hook has stopped the training, because of a signal to any task or a
      call of `request_stop`.
  """

  def __init__(self, signals: SignalState, engine: Engine, counter: StepCounter) -> None:
    self._signals, self._engine, self._counter = signals, engine, counter
    self.has_stopped = False
    self._is_stop_requested = False
    self._has_announced = False

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._signals.begin()

  def request_stop(self) -> None:
    """Requests a stop, as a signal does."""
    self._is_stop_requested = True

  @property
  def has_stop_signal(self) -> bool:
    """Whether a signal to any task has requested a stop."""
    is_announced_by_peer = (self._engine.announced_stop_step is not None
                            and not self._has_announced)
    return self._signals.stop_signum is not None or is_announced_by_peer

  def after_run(self, run_context: Any, run_values: Any) -> None:
    is_requested = self._is_stop_requested or self._signals.stop_signum is not None
    if is_requested and not self._has_announced:
      self._has_announced = True
      steps_to_go = 1 if self._engine.num_workers > 1 else 0
      self._engine.stop_all_at(self._counter.step_of_process + steps_to_go)
    stop_step = self._engine.announced_stop_step
    if stop_step is not None and self._counter.step_of_process >= stop_step:
      self.has_stopped = True
      run_context.request_stop()


class SaveOnSignal(tf.train.SessionRunHook):
  """Saves a checkpoint after the step during which SIGUSR1 arrived; training continues.

  Args:
    signals: the signals received so far.
    save_now: a function that saves a checkpoint, and returns its path, or None if saving failed and
      will be retried. If `save_now` itself is None, another task saves the checkpoints.
  """

  def __init__(self, signals: SignalState,
               save_now: Optional[Callable[[tf.Session], Optional[str]]]) -> None:
    self._signals = signals
    self._save_now = save_now

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if not self._signals.save_requested:
      return
    self._signals.save_requested = False
    if self._save_now is None:
      _LOG.info('SIGUSR1: ignored, because only the chief saves checkpoints')
      return
    path = self._save_now(run_context.session)
    if path is not None:
      _LOG.info('SIGUSR1: saved %s', path)
