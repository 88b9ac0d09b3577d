"""The hooks that respond to signals: stop the training, or save a checkpoint."""

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
# The time after which every other task has received an announcement.
_ANNOUNCE_SECS = 1.
_NUM_STEP_TIMES = 50


class StopOnSignal(tf.train.SessionRunHook):
  """Stops the training after the running step when a signal arrives.

  Estimator then saves a checkpoint and closes the session. Workers that train together have to stop
  at the same step, or the last one would wait forever. So the worker that receives the signal
  announces a step a little ahead, at which all of them stop.

  It must come after the hook that evaluates, because an evaluation may request a stop too.

  Args:
    signals: the signals received so far; `begin` is called before the first step, because from then
      on there is something to save.
    engine: the engine, which reaches the other workers.
    counter: the step counter.
    clock: returns the time in seconds.

  Attributes:
    has_stopped: whether the training was stopped, by a signal to this task or another one, or by
      `request`.
  """

  def __init__(self, signals: SignalState, engine: Engine, counter: StepCounter,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._signals, self._engine, self._counter = signals, engine, counter
    self._clock = clock
    self.has_stopped = False
    self._is_requested = False
    self._has_announced = False
    self._ended = 0.
    self._step_secs: Deque[float] = collections.deque(maxlen=_NUM_STEP_TIMES)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._ended = self._clock()
    self._signals.begin()

  def request(self) -> None:
    """Requests the same stop as a signal does."""
    self._is_requested = True

  @property
  def is_urgent(self) -> bool:
    """Whether a signal, to this task or another one, requests a stop."""
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
    """Returns the number of steps after which all workers know of a request."""
    if self._engine.size == 1:
      return 0
    # The median, because steps with a checkpoint or an evaluation take longer.
    return math.ceil(_ANNOUNCE_SECS / statistics.median(self._step_secs))


class SaveOnSignal(tf.train.SessionRunHook):
  """Saves a checkpoint after the step during which SIGUSR1 arrived; training continues.

  Args:
    signals: the signals received so far.
    save_now: saves a checkpoint, and returns its path, or None if that failed and will be retried;
      None instead of a function: another task saves the checkpoints.
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
      _LOG.info('SIGUSR1: ignored, because only the chief saves checkpoints')
      return
    path = self._save_now(run_context.session)
    if path is not None:
      _LOG.info('SIGUSR1: saved %s', path)
