"""The hooks that respond to signals: one stops the training, the other saves a checkpoint."""

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
# The time within which every other task receives an announcement.
_ANNOUNCE_SECS = 1.
_NUM_STEP_TIMES_KEPT = 50


class StopOnSignal(tf.train.SessionRunHook):
  """Stops the training after the running step when a signal arrives.

  Estimator then saves a checkpoint and closes the session. Workers that train together have to stop
  at the same step, or the last one would wait forever for the others. So the worker that receives
  the signal announces a step a little ahead, at which all of them stop.

  This hook must come after the hook that evaluates, because an evaluation may request a stop too.

  Args:
    signals: the signals received so far. This hook installs their handlers before the first step,
      because from then on there is something to save.
    engine: the engine, which announces the stop to the other workers.
    counter: the step counter.
    clock: returns the time in seconds.

  Attributes:
    has_stopped: whether this hook stopped the training, because of a signal to this task or another
      one, or because of `request`.
  """

  def __init__(self, signals: SignalState, engine: Engine, counter: StepCounter,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._signals, self._engine, self._counter = signals, engine, counter
    self._clock = clock
    self.has_stopped = False
    self._is_requested = False
    self._has_announced = False
    self._previous_end = 0.
    self._step_secs: Deque[float] = collections.deque(maxlen=_NUM_STEP_TIMES_KEPT)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._previous_end = self._clock()
    self._signals.begin()

  def request(self) -> None:
    """Requests a stop, as a signal does."""
    self._is_requested = True

  @property
  def has_stop_signal(self) -> bool:
    """Whether a signal, to this task or another one, has requested a stop."""
    is_announced_by_peer = self._engine.stop_step is not None and not self._has_announced
    return self._signals.stop_signum is not None or is_announced_by_peer

  def after_run(self, run_context: Any, run_values: Any) -> None:
    now = self._clock()
    self._step_secs.append(now - self._previous_end)
    self._previous_end = now
    if not self._has_announced and (self._is_requested or self._signals.stop_signum is not None):
      self._has_announced = True
      self._engine.stop_all_at(self._counter.step + self._steps_ahead())
    stop_step = self._engine.stop_step
    if stop_step is not None and self._counter.step >= stop_step:
      self.has_stopped = True
      run_context.request_stop()

  def _steps_ahead(self) -> int:
    """Returns the number of steps after which all workers have received an announcement."""
    if self._engine.size == 1:
      return 0
    # The median, because steps with a checkpoint or an evaluation take longer.
    return math.ceil(_ANNOUNCE_SECS / statistics.median(self._step_secs))


class SaveOnSignal(tf.train.SessionRunHook):
  """Saves a checkpoint after the step during which SIGUSR1 arrived; training continues.

  Args:
    signals: the signals received so far.
    save_now: a function that saves a checkpoint and returns its path, or None if saving failed and
      will be retried. If the argument itself is None, another task saves the checkpoints.
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
