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
from estimator_train.system.signals import SignalState
from estimator_train.system.watchdog import end_hanging_process
from estimator_train.training.steps import StepMonitor

_LOG = logging.getLogger('estimator_train')
_NUM_LOSSES_KEPT = 5
# With loss scaling, a run ends after this many consecutive steps whose loss is not finite. A loss
# scale that is too large cannot be the cause of so many, because each of these steps halves the
# scale, down to 1.
MAX_SKIPPED_STEPS = 100
_POLL_SECS = 1.


class StopAtNonFiniteLoss(tf.train.SessionRunHook):
  """Raises NonFiniteLoss at the first loss that is not finite.

  Args:
    skips_updates: whether loss scaling skips the update of a step whose loss is not finite. If so,
      the run ends only after MAX_SKIPPED_STEPS such steps in a row.
    schedule: the learning rate schedule; None if the model sets the rate.
  """

  def __init__(self, monitor: StepMonitor, skips_updates: bool = False,
               schedule: Optional[Schedule] = None) -> None:
    self._monitor, self._schedule = monitor, schedule
    self._max_non_finite_steps = MAX_SKIPPED_STEPS if skips_updates else 1
    # The number of consecutive steps, up to the last step, whose loss is not finite.
    self._num_non_finite_steps = 0
    self._finite_losses: Deque[Tuple[int, float]] = collections.deque(maxlen=_NUM_LOSSES_KEPT)

  @property
  def last_finite_loss(self) -> Optional[float]:
    """The last finite loss, which is a mean over the global batch; None if there was none."""
    return self._finite_losses[-1][1] if self._finite_losses else None

  @property
  def loss_history(self) -> str:
    """The last finite losses and the learning rate as text, for the error message.

    The step of each loss is a StepMonitor.local_step.
    """
    losses = ', '.join('{:.6g} at step {}'.format(loss, step)
                       for step, loss in self._finite_losses)
    rate = 'set by the model' if self._schedule is None else '{:g}'.format(
        self._schedule.rate_at(max(self._monitor.global_step - 1, 0)))
    return 'the last finite losses: {}; learning rate {}'.format(losses or 'none', rate)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(self._monitor.loss)
    if math.isfinite(loss):
      self._num_non_finite_steps = 0
      self._finite_losses.append((self._monitor.local_step, loss))
      return
    self._monitor.update_global_step(run_context.session)
    step = self._monitor.global_step
    self._num_non_finite_steps += 1
    if self._num_non_finite_steps >= self._max_non_finite_steps:
      suffix = ', the {}th such step in a row'.format(self._num_non_finite_steps)
      raise NonFiniteLoss('the loss is {} at step {}{}'.format(
          loss, step, suffix if self._max_non_finite_steps > 1 else ''))
    _LOG.warning('the loss is %s at step %d: loss scaling skips an update whose gradients are not '
                 'finite (--on_nan=skip)', loss, step)


class RespondToSignals(tf.train.SessionRunHook):
  """Stops the training after a stop signal, and saves a checkpoint after SIGUSR1.

  The training stops at the end of the running step or a few steps later. Estimator then saves a
  checkpoint and closes the session.

  Workers that train together must stop at the same step, because a worker that continued alone
  would wait forever for the others. So the worker that receives the signal announces the next step
  as the last one, and starts this step only after all other workers have confirmed. Until then, no
  worker can complete the step, because it needs all workers.

  This hook must come after `saver`, because an evaluation after a save may also request a stop.

  Args:
    signals: this hook installs the signal handlers when the session has been created. An earlier
      signal ends the run at once, because there is nothing to save.
    saver: the hook that saves checkpoints; None if another task saves them.

  Attributes:
    has_stopped_training: whether this hook has stopped the training, because of a signal to any
      task or an evaluation.
  """

  def __init__(self, signals: SignalState, engine: Engine, monitor: StepMonitor,
               saver: Optional[SaveCheckpoints]) -> None:
    self._signals, self._engine, self._monitor, self._saver = signals, engine, monitor, saver
    self.has_stopped_training = False
    self._has_requested_stop = False

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
    is_requested = self._signals.stop_signum is not None or (
        self._saver is not None and self._saver.is_stop_requested)
    if is_requested and not self._has_requested_stop:
      self._has_requested_stop = True
      steps_to_go = 1 if self._engine.num_workers > 1 else 0
      self._engine.peers.stop_all_at(self._monitor.local_step + steps_to_go)
    stop_step = self._engine.peers.stop_step
    if stop_step is not None and self._monitor.local_step >= stop_step:
      self.has_stopped_training = True
      run_context.request_stop()


class StepWatchdog(tf.train.SessionRunHook):
  """Limits the duration of each step, and of the creation of the session.

  A separate thread checks the duration, because the main thread may wait forever in a collective
  operation, during which Python handles no signals. After a timeout, this thread ends the process.
  This hook does not limit the time between steps, because an evaluation may take long; see
  system/watchdog.py.

  Args:
    is_wait_expected: returns whether a step has to wait, for example while another task evaluates.
      The time of such a wait does not count.
    clock: returns the time in seconds.
  """

  def __init__(self, timeout_secs: float, is_wait_expected: Callable[[], bool],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._timeout_secs, self._is_wait_expected, self._clock = timeout_secs, is_wait_expected, clock
    # Both are times on `clock`; _timer_start is None between steps. Only the main thread sets
    # _timer_start, and only the watching thread sets _last_wait_at, so neither thread overwrites a
    # value that the other one has just set.
    self._timer_start: Optional[float] = None
    self._last_wait_at = -math.inf
    self._is_closed = threading.Event()

  def begin(self) -> None:
    self._timer_start = self._clock()
    threading.Thread(target=self._watch, name='step watchdog', daemon=True).start()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._timer_start = None

  def before_run(self, run_context: Any) -> None:
    self._timer_start = self._clock()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._timer_start = None

  def close(self) -> None:
    """Stops the thread. Must also be called if the run has failed."""
    self._is_closed.set()

  def has_timed_out(self) -> bool:
    """Returns whether the running step, or the creation of the session, exceeds the timeout."""
    timer_start = self._timer_start
    if timer_start is None:
      return False
    if self._is_wait_expected():
      self._last_wait_at = self._clock()
      return False
    return self._clock() - max(timer_start, self._last_wait_at) > self._timeout_secs

  def _watch(self) -> None:
    while not self._is_closed.wait(_POLL_SECS):
      if self.has_timed_out():
        end_hanging_process(
            'no step finished for {:.0f} s (--step_timeout_secs): on several GPUs NCCL_DEBUG=INFO '
            'logs the cause, and --all_reduce_alg=hierarchical_copy (on one machine) or ring (on '
            'several machines) avoids NCCL'.format(self._timeout_secs))
