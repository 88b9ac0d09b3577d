"""Counts the steps, and fetches the loss and the accuracy of each step."""

import math
import time
from typing import Any, Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.model import observation
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.tf_patches import sessions


class StepMonitor(tf.train.SessionRunHook):
  """Counts the steps, and fetches the loss and the accuracy of each step for the hooks after it.

  The counts start at the step of the checkpoint. The accuracy covers only the replicas of this
  process, because an accuracy over all workers would need a collective operation in every step.

  Args:
    is_synchronous: whether this process takes part in every global step. If not, other workers also
      increment the global step, and `global_step` is exact only after `update_global_step`.

  Attributes:
    start_step: the global step at which the session began.
    local_step: `start_step` plus the number of steps that this process has completed since then.
      In synchronous training, this is the global step.
    global_step: the last known global step, which is at least `local_step`.
    loss: the loss of the last step, the mean over the global batch.
    accuracy: the accuracy of the last step; nan if the data has no classes.
  """

  def __init__(self, is_synchronous: bool = True) -> None:
    self._is_synchronous = is_synchronous
    self.start_step = self.local_step = self.global_step = 0
    self.loss = self.accuracy = math.nan

  def begin(self) -> None:
    # All steps fetch the same tensors, because TensorFlow prunes the graph for each new set of
    # fetches.
    self._run_args = tf.train.SessionRunArgs([
        observation.training_loss(), observation.accuracy()])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self.start_step = self.local_step = self.global_step = sessions.read_global_step(session)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.local_step += 1
    self.global_step += 1
    self.loss, self.accuracy = run_values.results

  def update_global_step(self, session: tf.Session) -> None:
    """Reads `global_step` from the session if other workers also increment the global step."""
    if not self._is_synchronous:
      self.global_step = max(sessions.read_global_step(session), self.global_step)


class StepWindow(NamedTuple):
  """Consecutive steps of a run.

  Attributes:
    first_step: the first global step.
    last_step: the last global step; `first_step - 1` if the window has no step.
    secs: the time from the end of the previous window to the end of the last step.
    loss: the mean over the steps of this process whose loss is finite; nan without such a step.
    accuracy: the mean over the same steps; nan if the accuracy is unknown.
  """
  first_step: int
  last_step: int
  secs: float
  loss: float
  accuracy: float


class WindowRecorder:
  """Divides the steps of a run into windows, each of which begins where the previous one ends."""

  def __init__(self, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._monitor, self._clock = monitor, clock
    self._open_window(0.)

  def _open_window(self, start_time: float) -> None:
    self._first_step, self._start_time = self._monitor.global_step + 1, start_time
    self._num_finite_losses = 0
    self._loss_sum = self._accuracy_sum = 0.

  def start(self) -> None:
    """Opens the first window. Must be called when the session has been created."""
    self._open_window(self._clock())

  def add_step(self) -> None:
    """Adds the step that the monitor has just counted to the window."""
    if math.isfinite(self._monitor.loss):
      self._num_finite_losses += 1
      self._loss_sum += self._monitor.loss
      self._accuracy_sum += self._monitor.accuracy

  def close_window(self) -> StepWindow:
    """Ends the window at the last known global step, and opens the next one."""
    now = self._clock()
    window = StepWindow(self._first_step, self._monitor.global_step, now - self._start_time,
                        self.loss, self.accuracy)
    self._open_window(now)
    return window

  @property
  def loss(self) -> float:
    """The loss of the open window; see StepWindow."""
    return self._loss_sum / self._num_finite_losses if self._num_finite_losses else math.nan

  @property
  def accuracy(self) -> float:
    """The accuracy of the open window; see StepWindow."""
    return self._accuracy_sum / self._num_finite_losses if self._num_finite_losses else math.nan


class EpochRecorder:
  """Divides the steps of a run into windows that end with the epochs.

  A resumed run starts within the epoch of its checkpoint. A step that takes examples from two
  epochs counts for the earlier one.

  Args:
    step_clock: of a finite data set.
    clock: returns the time in seconds.
  """

  def __init__(self, step_clock: StepClock, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._step_clock, self._monitor = step_clock, monitor
    self.window_recorder = WindowRecorder(monitor, clock)
    self._epoch_end_step = 0

  def start(self) -> None:
    """Opens the first window. Must be called when the session has been created."""
    self.window_recorder.start()
    self._find_epoch_end(self._monitor.start_step)

  def add_step(self) -> None:
    """Adds the step that the monitor has just counted to the window."""
    self.window_recorder.add_step()

  def close_window_at_epoch_end(self) -> Optional[StepWindow]:
    """Returns the window if the last step has ended an epoch, and opens the next one; else None."""
    if self._monitor.global_step < self._epoch_end_step:
      return None
    window = self.window_recorder.close_window()
    self._find_epoch_end(window.last_step)
    return window

  def _find_epoch_end(self, step: int) -> None:
    # Other workers may also increment the global step, so several epochs may have ended at once.
    self._epoch_end_step = self._step_clock.step_at_epoch(
        self._step_clock.completed_epochs(step) + 1)


def is_logged(step: int, interval: int = 1, num_before_thinning: int = 10000) -> bool:
  """Returns whether a step is logged.

  The first `num_before_thinning` multiples of `interval` are all logged. After them, every second
  multiple is logged. This distance doubles each time the number of multiples doubles. By default,
  43,000 of the first million multiples are logged. The result depends only on the arguments, so all
  workers and a resumed run log the same steps.

  Args:
    step: the global step, or the number of an epoch.
    interval: `--log_every_steps` for steps; 1 for epochs.
  """
  multiple, remainder = divmod(step, interval)
  return not remainder and multiple % (1 << (multiple // num_before_thinning).bit_length()) == 0
