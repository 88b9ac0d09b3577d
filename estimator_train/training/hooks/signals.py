"""The hooks for what signals request: the end of the training, or a checkpoint."""

import collections
import logging
import math
import statistics
import time
from typing import Any, Callable, Deque, Optional

import tensorflow.compat.v1 as tf

from estimator_train.distribution.engines.engine import Engine
from estimator_train.process.signals import SignalState
from estimator_train.training.hooks.step_counter import StepCounter

_LOG = logging.getLogger('estimator_train')
# Until every other task knows what this one has announced.
_ANNOUNCE_SECS = 1.
_STEPS = 50


class StopOnSignal(tf.train.SessionRunHook):
  """Turns a signal into a stop after the running step; Estimator then saves and closes.

  Workers that train together have to stop at the same step, or the last would wait for ever. So
  the one that gets the signal names a step a little ahead, and all stop there.

  It comes after the hook that evaluates, which may request the same.

  Args:
    signals: received from the first step on, when there is something to save.
    engine: has the other workers, if any.
    counter: counts the steps.
    clock: in seconds.

  Attributes:
    has_stopped: whether a signal, another task's, or `request` has ended the run.
  """

  def __init__(self, signals: SignalState, engine: Engine, counter: StepCounter,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._signals, self._engine, self._counter = signals, engine, counter
    self._clock = clock
    self.has_stopped = False
    self._is_requested = False
    self._has_announced = False
    self._ended = 0.
    self._step_secs: Deque[float] = collections.deque(maxlen=_STEPS)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._ended = self._clock()
    self._signals.begin()

  def request(self) -> None:
    """Requests the end that a signal would bring."""
    self._is_requested = True

  @property
  def is_urgent(self) -> bool:
    """Whether a signal, to this task or another one, requests the end."""
    by_another = self._engine.stop_at is not None and not self._has_announced
    return self._signals.stop is not None or by_another

  def after_run(self, run_context: Any, run_values: Any) -> None:
    before, self._ended = self._ended, self._clock()
    self._step_secs.append(self._ended - before)
    if not self._has_announced and (self._is_requested or self._signals.stop is not None):
      self._has_announced = True
      self._engine.stop_all_at(self._counter.step + self._steps_ahead())
    stop_at = self._engine.stop_at
    if stop_at is not None and self._counter.step >= stop_at:
      self.has_stopped = True
      run_context.request_stop()

  def _steps_ahead(self) -> int:
    """Returns after how many steps all workers know of a request."""
    if self._engine.size == 1:
      return 0
    # Steps of different lengths: those with a checkpoint or an evaluation count into others.
    return math.ceil(_ANNOUNCE_SECS / statistics.median(self._step_secs))


class SaveOnSignal(tf.train.SessionRunHook):
  """Has a checkpoint saved after the step in which SIGUSR1 came; training goes on.

  Args:
    signals: received so far.
    save_now: saves one, and returns its path, None when it cannot yet; None: another task saves.
  """

  def __init__(self, signals: SignalState,
               save_now: Optional[Callable[[tf.Session], Optional[str]]]) -> None:
    self._signals = signals
    self._save_now = save_now

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if not self._signals.save:
      return
    self._signals.save = False
    if self._save_now is None:
      _LOG.info('SIGUSR1: it is the chief that saves checkpoints')
      return
    path = self._save_now(run_context.session)
    if path is not None:
      _LOG.info('SIGUSR1: saved %s', path)
