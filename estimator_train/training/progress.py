"""Hooks that show the progress of a training run as a bar, in the log, and for TensorBoard."""

import logging
import math
import time
from typing import Any, Callable

import tensorflow.compat.v1 as tf

from estimator_train.reports import metrics_log
from estimator_train.system.progress import make_progress_bar, shows_progress_bars
from estimator_train.training import summaries
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.run import Run
from estimator_train.training.steps import StepMonitor, StepWindow, WindowRecorder, is_logged

_LOG = logging.getLogger('estimator_train')


class ShowProgress(tf.train.SessionRunHook):
  """Shows the progress of the training as a bar or, if no bar can be shown, as log lines.

  At each logged step, this hook also writes scalars for TensorBoard and a line of metrics.jsonl.
  All values except the learning rate are means since the previous logged step. The time per step
  includes pauses.

  Args:
    clock: returns the time in seconds.
  """

  def __init__(self, run: Run, model: PreparedModel, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._run, self._schedule, self._monitor = run, model.schedule, monitor
    self._window_recorder = WindowRecorder(monitor, clock)
    self._bar: Any = None
    _LOG.info('building the graph and running the first step')

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._window_recorder.start()
    if shows_progress_bars():
      # The bar is drawn after the first step, and then once a second. `postfix` can be any object.
      self._bar = make_progress_bar(
          total=self._run.end_step, initial=self._monitor.global_step, leave=False,
          dynamic_ncols=True, delay=1e-3, mininterval=0, miniters=1, postfix=self,
          bar_format='{postfix.text_before_bar} |{bar}|')

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._window_recorder.add_step()
    step = self._monitor.global_step
    if is_logged(step, self._run.settings.reporting.log_every_steps) or step >= self._run.end_step:
      self._monitor.update_global_step(run_context.session)
      self._write_and_log_means()
    if self._bar is not None:
      self._bar.update(self._monitor.global_step - self._bar.n)
      self._bar.mininterval = 1.

  def _write_and_log_means(self) -> None:
    """Writes the means since the previous logged step, and logs a line unless there is a bar."""
    window = self._window_recorder.close_window()
    step = window.last_step
    step_secs = window.secs / max(step - window.first_step + 1, 1)
    examples_per_sec = self._run.engine.examples_per_step / step_secs
    if self._run.event_dir is not None:
      scalars = {'examples_per_sec': examples_per_sec, 'step_secs': step_secs}
      if self._schedule is not None:
        scalars['learning_rate'] = self._schedule.rate_at(step - 1)
      summaries.write_scalars(self._run.event_dir, scalars, step)
      metrics_log.append(self._run.event_dir, 'train', step, dict(
          scalars, loss=window.loss, accuracy=window.accuracy))
    if self._bar is None:
      _LOG.info('step %d/%d%s: loss %.4f%s, %s examples/sec, %s left', step, self._run.end_step,
                self._format_epoch(), window.loss,
                format_unless_nan(', accuracy {:.4f}', window.accuracy),
                '{:,.0f}'.format(examples_per_sec),
                format_duration((self._run.end_step - step) * step_secs))

  @property
  def text_before_bar(self) -> str:
    """The text before the bar. A narrow terminal cuts off its end."""
    if self._bar is None:  # The constructor of a notebook's bar already draws the bar.
      return ''
    figures = self._bar.format_dict
    steps_per_sec = figures['rate'] or (
        max(figures['n'] - figures['initial'], 1) / max(figures['elapsed'], 1e-3))
    return 'step {}/{}{}, {} left, loss {:.4f}{}, {:,.0f} examples/sec'.format(
        self._bar.n, self._bar.total, self._format_epoch(),
        format_duration((self._run.end_step - self._bar.n) / steps_per_sec), self._monitor.loss,
        format_unless_nan(', accuracy {:.4f}', self._monitor.accuracy),
        self._run.engine.examples_per_step * steps_per_sec)

  def _format_epoch(self) -> str:
    """Returns the current epoch and the number of epochs; '' if the data set is infinite."""
    if self._run.clock.num_examples is None:
      return ''
    return ' (epoch {}/{})'.format(
        *map(self._run.clock.epoch_at, (self._monitor.global_step, self._run.end_step)))

  def end(self, session: tf.Session) -> None:
    # The bar of a notebook turns red if it is closed before it is full. Red should mean that the
    # training has failed, not that an evaluation or a signal has stopped it. After a failure, this
    # method is not called.
    if self._bar is not None:
      self._bar.total = self._bar.n = self._monitor.global_step

  def close(self) -> None:
    """Closes the bar, and removes it from a terminal. Must also be called if the run has failed."""
    if self._bar is not None:
      self._bar.close()


class LogEpochs(tf.train.SessionRunHook):
  """Logs loss, accuracy and examples/sec at the end of an epoch, and writes them to metrics.jsonl.

  After the first 10,000 epochs, only some epochs are logged; see is_logged. Loss and accuracy are
  means over the steps of this process since the end of the previous epoch. A step that takes
  examples from two epochs counts for the earlier one. If the run was resumed within the epoch, the
  line names the first step. If the learning rate has changed, the line names the new rate.

  Args:
    run: a run with a finite data set.
    clock: returns the time in seconds.
  """

  def __init__(self, run: Run, model: PreparedModel, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._run, self._schedule, self._monitor = run, model.schedule, monitor
    self._window_recorder = WindowRecorder(monitor, clock)
    self._epoch_end_step = 0
    self._learning_rate = math.nan

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    # A resumed run starts in the epoch of its checkpoint. Earlier epochs are already logged.
    step, clock = self._monitor.start_step, self._run.clock
    self._window_recorder.start()
    self._epoch_end_step = clock.step_at_epoch(clock.completed_epochs(step) + 1)
    if self._schedule is not None:
      self._learning_rate = self._schedule.rate_at(step)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._window_recorder.add_step()
    if self._monitor.global_step < self._epoch_end_step:
      return
    window, clock = self._window_recorder.close_window(), self._run.clock
    # Other workers may also increment the global step, so several epochs may have ended at once.
    epoch = clock.completed_epochs(window.last_step)
    if is_logged(epoch):
      self._log_and_write(epoch, window)
    self._epoch_end_step = clock.step_at_epoch(epoch + 1)

  def _log_and_write(self, epoch: int, window: StepWindow) -> None:
    """Logs and writes the figures of an epoch, whose steps are those of the window."""
    clock, start_step, step = self._run.clock, window.first_step - 1, window.last_step
    secs = max(window.secs, 1e-9)
    examples_per_sec = (clock.examples_at(step) - clock.examples_at(start_step)) / secs
    starts_within_epoch = start_step > clock.step_at_epoch(epoch - 1)
    learning_rate_text = ''
    if self._schedule is not None:
      previous_rate, self._learning_rate = self._learning_rate, self._schedule.rate_at(step - 1)
      if previous_rate != self._learning_rate:
        learning_rate_text = ', learning rate {:g}'.format(self._learning_rate)
    _LOG.info('epoch %d/%d%s: loss %.4f%s, %s, %s examples/sec%s', epoch,
              clock.epoch_at(self._run.end_step),
              ' (from step {})'.format(window.first_step) if starts_within_epoch else '',
              window.loss,
              format_unless_nan(', accuracy {:.4f}', window.accuracy), format_duration(secs),
              '{:,.0f}'.format(examples_per_sec), learning_rate_text)
    if self._run.event_dir is not None:
      metrics_log.append(self._run.event_dir, 'epoch', step, {
          'epoch': epoch, 'first_step': window.first_step, 'loss': window.loss,
          'accuracy': window.accuracy, 'secs': secs, 'examples_per_sec': examples_per_sec})


def format_unless_nan(template: str, value: float) -> str:
  return '' if math.isnan(value) else template.format(value)


def format_duration(secs: float) -> str:
  """Formats a duration as `42 s`, `3:05` or `2:03:05`."""
  if secs < 60:
    return '{:.0f} s'.format(secs)
  minutes, seconds = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return '{}:{:02}:{:02}'.format(hours, minutes, seconds) if hours else '{}:{:02}'.format(
      minutes, seconds)
