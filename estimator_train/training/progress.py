"""Hooks that show the progress of a training run as a bar, in the log, and for TensorBoard."""

import logging
import math
import time
from typing import Any, Callable, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.reports import metrics_log
from estimator_train.system.formatting import format_clock, format_metric, format_number
from estimator_train.system.progress import Phase, ProgressBar
from estimator_train.training import summaries
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.run import Run
from estimator_train.training.steps import (
  EpochRecorder,
  StepMonitor,
  StepWindow,
  WindowRecorder,
  is_logged,
)

_LOG = logging.getLogger('estimator_train')


class ShowProgress(tf.train.SessionRunHook):
  """Shows the progress of the training as a bar or, if no bar can be shown, as log lines.

  The loss and the accuracy that are shown are means over the steps of the current epoch. If the
  data set is infinite, they are means since the previous logged step.

  At each logged step, this hook also writes scalars for TensorBoard and a line of metrics.jsonl.
  All values in them except the learning rate are means since the previous logged step. The time
  per step includes pauses.

  Args:
    clock: returns the time in seconds.
  """

  def __init__(self, run: Run, model: PreparedModel, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._run, self._schedule, self._monitor = run, model.schedule, monitor
    self._window_recorder = WindowRecorder(monitor, clock)
    self._epoch_recorder = EpochRecorder(run.clock, monitor) if run.clock.num_examples else None
    self._means = math.nan, math.nan  # The loss and the accuracy that are shown.
    self._bar: Optional[ProgressBar] = None
    self._first_step_phase = Phase('building the graph and running the first step')

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._window_recorder.start()
    if self._epoch_recorder is not None:
      self._epoch_recorder.start()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    shown_window = self._window_recorder
    self._window_recorder.add_step()
    if self._epoch_recorder is not None:
      shown_window = self._epoch_recorder.window_recorder
      self._epoch_recorder.add_step()
    self._means = shown_window.loss, shown_window.accuracy
    step = self._monitor.global_step
    if self._bar is None:
      self._first_step_phase.end()
      self._bar = ProgressBar(self._describe, self._run.end_step, step)
    if is_logged(step, self._run.settings.reporting.log_every_steps) or step >= self._run.end_step:
      self._monitor.update_global_step(run_context.session)
      self._write_and_log_means()
    self._bar.advance_to(self._monitor.global_step)
    if self._epoch_recorder is not None:
      self._epoch_recorder.close_window_at_epoch_end()

  def _write_and_log_means(self) -> None:
    """Writes the means since the previous logged step, and logs a line unless there is a bar."""
    window = self._window_recorder.close_window()
    step = window.last_step
    step_secs = window.secs / max(step - window.first_step + 1, 1)
    examples_per_sec = self._run.engine.examples_per_step / step_secs
    if self._run.event_dir is not None:
      scalars = {'examples_per_sec': examples_per_sec, 'step_secs': step_secs}
      summaries.write_scalars(self._run.event_dir, scalars, step)
      if self._schedule is not None:
        scalars['learning_rate'] = self._schedule.rate_at(step - 1)
      metrics_log.append(self._run.event_dir, 'train', step, dict(
          scalars, loss=window.loss, accuracy=window.accuracy))
    if self._bar is None or not self._bar.is_shown:
      epoch = self._format_epoch()
      _LOG.info('step %d/%d%s: %s, %s examples/sec, %s left', step, self._run.end_step,
                epoch and ' ({})'.format(epoch), ', '.join(format_means(*self._means)),
                format_number(examples_per_sec),
                format_clock((self._run.end_step - step) * step_secs))

  def _describe(self, bar: ProgressBar) -> List[str]:
    """Returns the parts of the text in front of the bar, the most important one first."""
    epoch, rate = self._format_epoch(), bar.rate
    return ['step {}/{}'.format(bar.amount, self._run.end_step), bar.format_time(),
            *format_means(*self._means), *([epoch] if epoch else []),
            *([] if rate is None else ['{} examples/sec'.format(
                format_number(self._run.engine.examples_per_step * rate))])]

  def _format_epoch(self) -> str:
    """Returns the current epoch and the number of epochs; '' if the data set is infinite."""
    if self._run.clock.num_examples is None:
      return ''
    return 'epoch {}/{}'.format(
        *map(self._run.clock.epoch_at, (self._monitor.global_step, self._run.end_step)))

  def end(self, session: tf.Session) -> None:
    # The bar of a notebook turns red if it is closed before it is full. Red should mean that the
    # training has failed, not that an evaluation or a signal has stopped it. After a failure, this
    # method is not called.
    if self._bar is not None:
      self._bar.finish_at(self._monitor.global_step)

  def close(self) -> None:
    """Closes the bar, and removes it from a terminal. Must also be called if the run has failed."""
    self._first_step_phase.close()
    if self._bar is not None:
      self._bar.close()


class LogEpochs(tf.train.SessionRunHook):
  """Logs loss, accuracy and examples/sec at the end of an epoch, and writes them to metrics.jsonl.

  After the first 10,000 epochs, only some epochs are logged; see is_logged. Loss and accuracy are
  means over the steps of this process since the end of the previous epoch; see EpochRecorder. If
  the run was resumed within the epoch, the line names the first step. If the learning rate has
  changed, the line names the new rate.

  Args:
    run: a run with a finite data set.
    clock: returns the time in seconds.
  """

  def __init__(self, run: Run, model: PreparedModel, monitor: StepMonitor,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._run, self._schedule, self._monitor = run, model.schedule, monitor
    self._recorder = EpochRecorder(run.clock, monitor, clock)
    self._learning_rate = math.nan

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._recorder.start()
    if self._schedule is not None:
      self._learning_rate = self._schedule.rate_at(self._monitor.start_step)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._recorder.add_step()
    window = self._recorder.close_window_at_epoch_end()
    if window is not None:
      epoch = self._run.clock.completed_epochs(window.last_step)
      if is_logged(epoch):
        self._log_and_write(epoch, window)

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
        learning_rate_text = ', learning rate {}'.format(format_number(self._learning_rate))
    _LOG.info('epoch %d/%d%s: %s, %s, %s examples/sec%s', epoch,
              clock.epoch_at(self._run.end_step),
              ' (from step {})'.format(window.first_step) if starts_within_epoch else '',
              ', '.join(format_means(window.loss, window.accuracy)), format_clock(secs),
              format_number(examples_per_sec), learning_rate_text)
    if self._run.event_dir is not None:
      metrics_log.append(self._run.event_dir, 'epoch', step, {
          'epoch': epoch, 'first_step': window.first_step, 'loss': window.loss,
          'accuracy': window.accuracy, 'secs': secs, 'examples_per_sec': examples_per_sec})


def format_means(loss: float, accuracy: float) -> List[str]:
  """Returns the texts of a loss and of an accuracy, which is nan if the data has no classes."""
  return ['loss ' + format_metric(loss),
          *([] if math.isnan(accuracy) else ['accuracy ' + format_metric(accuracy)])]
