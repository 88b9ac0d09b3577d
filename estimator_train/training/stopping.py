"""Hooks that stop a run at a loss that is not finite, after a signal, or if a step hangs."""

import collections
import logging
import math
import threading
import time
from typing import Any, Callable, Deque, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.saving import SaveCheckpoints
from estimator_train.distribution.engines import Engine
from estimator_train.errors import NonFiniteLoss
from estimator_train.model.schedules import Schedule
from estimator_train.system.formatting import format_metric
from estimator_train.system.signals import SignalState
from estimator_train.system.watchdog import end_hanging_process
from estimator_train.training.steps import StepMonitor

_LOG = logging.getLogger('estimator_train')
_NUM_LOSSES_IN_ERROR = 5
# With loss scaling, a run ends after this many consecutive steps whose loss is not finite. A loss
# scale that is too large cannot cause so many of them, because each one halves the scale, down to
# 1.
MAX_SKIPPED_STEPS = 100
_POLL_SECS = 1.


class StopAtNonFiniteLoss(tf.train.SessionRunHook):
  """Raises NonFiniteLoss at the first loss that is not finite.

  Args:
    skips_updates: whether loss scaling skips the update of a step whose loss is not finite. If so,
      the run ends only after MAX_SKIPPED_STEPS such steps in a row.
    schedule: None if the model sets the learning rate.
  """

  def __init__(self, monitor: StepMonitor, skips_updates: bool = False,
               schedule: Optional[Schedule] = None) -> None:
    self._monitor, self._schedule = monitor, schedule
    self._max_non_finite_steps = MAX_SKIPPED_STEPS if skips_updates else 1
    self._consecutive_non_finite_steps = 0
    self._last_finite_losses: Deque[Tuple[int, float]] = collections.deque(
        maxlen=_NUM_LOSSES_IN_ERROR)

  @property
  def last_finite_loss(self) -> Optional[float]:
    """The last finite loss, a mean over the global batch; None if there was none."""
    return self._last_finite_losses[-1][1] if self._last_finite_losses else None

  def describe_last_losses(self) -> str:
    """Returns the last finite losses and the learning rate as text, for the error message."""
    losses = ', '.join('{} at step {}'.format(format_metric(loss), local_step)
                       for local_step, loss in self._last_finite_losses)
    rate = 'set by the model' if self._schedule is None else '{:g}'.format(
        self._schedule.rate_at(max(self._monitor.global_step - 1, 0)))
    return 'the last finite losses: {}; learning rate {}'.format(losses or 'none', rate)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(self._monitor.loss)
    if math.isfinite(loss):
      self._consecutive_non_finite_steps = 0
      self._last_finite_losses.append((self._monitor.local_step, loss))
      return
    self._monitor.update_global_step(run_context.session)
    step = self._monitor.global_step
    self._consecutive_non_finite_steps += 1
    if self._consecutive_non_finite_steps >= self._max_non_finite_steps:
      suffix = ', the {}th such step in a row'.format(self._consecutive_non_finite_steps)
      raise NonFiniteLoss('the loss is {} at step {}{}'.format(
          loss, step, suffix if self._max_non_finite_steps > 1 else ''))
    _LOG.warning('the loss is %s at step %d: loss scaling skips an update whose gradients are not '
                 'finite (--on_nan=skip)', loss, step)


class RespondToSignals(tf.train.SessionRunHook):
  """Stops the training after a stop signal, and saves a checkpoint after SIGUSR1.

  The training stops at the end of the running step or a few steps later. Estimator then saves a
  checkpoint and closes the session.

  Workers that train together must stop at the same step, because a worker that continued alone
  would wait forever for the others. The worker that receives the signal therefore announces the
  next step as the last one, and starts this step only after all other workers have confirmed. Until
  then, no worker can complete the step, because it needs all workers.

  This hook must come after `saver`, because an evaluation after a save may also request a stop.

  Args:
    signals: this hook installs the signal handlers when the session has been created. An earlier
      signal ends the run at once, because there is nothing to save.
    saver: None if another task saves the checkpoints.

  Attributes:
    has_stopped_training: whether this hook has stopped the training, because of a signal to any
      task or an evaluation.
  """

  def __init__(self, signals: SignalState, engine: Engine, monitor: StepMonitor,
               saver: Optional[SaveCheckpoints]) -> None:
    self._signals, self._engine, self._monitor, self._saver = signals, engine, monitor, saver
    self.has_stopped_training = False
    self._has_announced_stop = False

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._signals.start_recording()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if self._signals.save_requested:
      self._signals.save_requested = False
      if self._saver is None:
        _LOG.info('SIGUSR1: ignored, because only the chief saves checkpoints')
      else:
        path = self._saver.save_now(run_context.session)
        if path is not None:
          _LOG.info('SIGUSR1: saved %s', path)
    is_stop_requested = self._signals.stop_signum is not None or (
        self._saver is not None and self._saver.is_stop_requested)
    if is_stop_requested and not self._has_announced_stop:
      self._has_announced_stop = True
      num_more_steps = 1 if self._engine.num_workers > 1 else 0
      self._engine.peers.stop_all_at(self._monitor.local_step + num_more_steps)
    stop_step = self._engine.peers.stop_step
    if stop_step is not None and self._monitor.local_step >= stop_step:
      self.has_stopped_training = True
      run_context.request_stop()


class StepWatchdog(tf.train.SessionRunHook):
  """Limits the duration of each step, and of the creation of the session.

  A separate thread checks the duration, because the main thread may wait forever in a collective
  operation, during which Python handles no signals. After a timeout, this thread ends the process.
  This hook does not limit the time between steps, because an evaluation may take long. See
  system/watchdog.py for the limit of an evaluation.

  Args:
    is_wait_expected: returns whether a step has to wait, for example while another task evaluates.
      The time of such a wait does not count.
    clock: returns the time in seconds.
  """

  def __init__(self, timeout_secs: float, is_wait_expected: Callable[[], bool],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._timeout_secs, self._is_wait_expected, self._clock = timeout_secs, is_wait_expected, clock
    # The main thread sets the first of these times on `clock`, and the watching thread sets the
    # second one. So neither thread overwrites a value that the other one has just set.
    self._start_time: Optional[float] = None  # Of the step or the session; None between steps.
    self._last_expected_wait_time = -math.inf
    self._is_closed = threading.Event()

  def begin(self) -> None:
    self._start_time = self._clock()
    threading.Thread(target=self._watch, name='step watchdog', daemon=True).start()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._start_time = None

  def before_run(self, run_context: Any) -> None:
    self._start_time = self._clock()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._start_time = None

  def close(self) -> None:
    """Stops the thread. Must also be called if the run has failed."""
    self._is_closed.set()

  def has_timed_out(self) -> bool:
    """Returns whether the running step, or the creation of the session, exceeds the timeout."""
    start_time = self._start_time
    if start_time is None:
      return False
    if self._is_wait_expected():
      self._last_expected_wait_time = self._clock()
      return False
    return self._clock() - max(start_time, self._last_expected_wait_time) > self._timeout_secs

  def _watch(self) -> None:
    while not self._is_closed.wait(_POLL_SECS):
      if self.has_timed_out():
        end_hanging_process(
            'no step finished for {:.0f} s (--step_timeout_secs): on several GPUs NCCL_DEBUG=INFO '
            'logs the cause, and --all_reduce_alg=hierarchical_copy (on one machine) or ring (on '
            'several machines) avoids NCCL'.format(self._timeout_secs))
