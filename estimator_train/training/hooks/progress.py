"""The hook that shows the progress of a training run."""

import collections
import logging
import math
import shutil
import time
from typing import Any, Callable, Deque, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.system.progress import is_in_notebook, is_shown, make_progress_bar
from estimator_train.training.hooks import logged_steps, summaries
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.hooks.text import count_epochs, format_duration, format_unless_nan
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
_REDRAW_SECS = 1.
# The rate next to the bar is the mean over about this many intervals between redraws. Usually, such
# an interval is one second.
_RATE_WINDOW_REDRAWS = 10
_MIN_COLUMNS_OF_LONG_FORM = 100  # A narrower terminal shows a shorter text instead of the bar.


class ShowProgress(tf.train.SessionRunHook):
  """Shows the progress of the training: as a bar, or as log lines where no bar is shown.

  Also writes three scalars for TensorBoard at each logged step. `examples_per_sec` and `step_secs`
  are the mean rate and the mean time per step since the previous logged step; the time includes
  pauses. `learning_rate` is the learning rate of the step.

  Args:
    counter: the step counter.
    metrics: provides the loss and the accuracy of the last step.
    model_dir: the folder for summaries, or None if this task writes no summaries.
    stop_step: the global step to train up to.
    log_every_steps: the number of steps from one log line or summary to the next. After the first
      10,000 lines the number increases, see logged_steps.py.
    examples_per_step: the number of examples in a global step.
    num_examples: the number of examples in an epoch, or None if the data set has no end.
    schedule: the learning rate schedule, or None if the rate is unknown.
    after_first_step: a function that is called once, after the first step of this process.
    clock: a function that returns the time in seconds.
  """

  def __init__(self, counter: StepCounter, metrics: BatchMetrics, model_dir: Optional[str],
               stop_step: int, log_every_steps: int, examples_per_step: int,
               num_examples: Optional[int] = None,
               schedule: Optional[Schedule] = None,
               after_first_step: Callable[[], None] = lambda: None,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._counter = counter
    self._metrics = metrics
    self._model_dir = model_dir
    self._stop_step = stop_step
    self._log_every_steps = log_every_steps
    self._examples_per_step = examples_per_step
    self._num_examples = num_examples
    self._schedule = schedule
    self._after_first_step = after_first_step
    self._clock = clock
    self._last_logged_step, self._last_logged_at = 0, 0.
    self._next_redraw_at = 0.
    self._redraws: Deque[Tuple[int, float]] = collections.deque(maxlen=_RATE_WINDOW_REDRAWS + 1)
    self._bar: Any = None

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    step, now = self._counter.global_step, self._clock()
    self._last_logged_step, self._last_logged_at = step, now
    self._redraws.append((step, now))
    if is_shown():
      self._bar = make_progress_bar(
          total=self._stop_step, initial=step, leave=False, dynamic_ncols=True,
          mininterval=math.inf, bar_format='{desc}')

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if self._counter.step_of_process == self._counter.start_step + 1:
      self._after_first_step()
    step = self._counter.global_step
    is_redraw_due = self._bar is not None and self._clock() >= self._next_redraw_at
    if logged_steps.is_logged(step, self._log_every_steps) or step >= self._stop_step:
      self._counter.update_global_step(run_context.session)
      self._log(self._metrics.loss, self._metrics.accuracy)
    elif not is_redraw_due:
      return
    if self._bar is not None:
      self._redraw_bar(self._metrics.loss, self._metrics.accuracy)

  def _log(self, loss: float, accuracy: float) -> None:
    """Writes the scalars of a step, and logs a line unless there is a bar."""
    now, step = self._clock(), self._counter.global_step
    step_secs = (now - self._last_logged_at) / max(step - self._last_logged_step, 1)
    rate = self._examples_per_step / step_secs
    self._last_logged_step, self._last_logged_at = step, now
    if self._model_dir is not None:
      scalars = {'examples_per_sec': rate, 'step_secs': step_secs}
      if self._schedule is not None:
        scalars['learning_rate'] = self._schedule.rate_at(step - 1)
      summaries.write_scalars(self._model_dir, scalars, step)
    if self._bar is None:
      _LOG.info('step %d/%d%s: loss %.4f%s, %s examples/sec, %s left', step, self._stop_step,
                self._format_epoch(' (epoch {}/{})'), loss,
                format_unless_nan(', accuracy {:.4f}', accuracy), '{:,.0f}'.format(rate),
                format_duration((self._stop_step - step) * step_secs))

  def _redraw_bar(self, loss: float, accuracy: float) -> None:
    """Redraws the bar and its text, in a form that fits the width of the terminal."""
    now, step = self._clock(), self._counter.global_step
    self._next_redraw_at = now + _REDRAW_SECS
    oldest_step, oldest_time = self._redraws[0]
    self._redraws.append((step, now))
    step_secs = (now - oldest_time) / max(step - oldest_step, 1)
    rate = self._examples_per_step / step_secs
    time_left = format_duration((self._stop_step - step) * step_secs)
    columns = shutil.get_terminal_size().columns
    if columns >= _MIN_COLUMNS_OF_LONG_FORM or is_in_notebook():
      text = 'step {}/{}{}, loss {:.4f}{}, {:,.0f} examples/sec, {} left'.format(
          step, self._stop_step, self._format_epoch(', epoch {}/{}'), loss,
          format_unless_nan(', accuracy {:.4f}', accuracy), rate, time_left)
      self._bar.bar_format = '{desc} |{bar}|'
    else:
      text = '{}/{}{} loss {:.3f}{} {:,.0f}/s {}'.format(
          step, self._stop_step, self._format_epoch(' ep {}/{}'), loss,
          format_unless_nan(' acc {:.3f}', accuracy), rate, time_left)[:columns - 1]
      self._bar.bar_format = '{desc}'
    self._bar.n = step
    self._bar.set_description_str(text)

  def _format_epoch(self, template: str) -> str:
    """Formats the template with the current epoch and the number of epochs.

    Returns '' if the data set has no end.
    """
    if self._num_examples is None:
      return ''
    epoch, num_epochs = (count_epochs(step, self._num_examples, self._examples_per_step)
                         for step in (self._counter.global_step, self._stop_step))
    return template.format(epoch, num_epochs)

  def end(self, session: tf.Session) -> None:
    # Not called if training fails. A widget turns red if it is closed before it is full, which must
    # not happen because an evaluation or a signal has stopped the training early.
    if self._bar is not None:
      self._bar.total = self._bar.n = self._counter.global_step

  def close(self) -> None:
    """Closes the bar, and removes it from a terminal; must also be called if the run failed."""
    if self._bar is not None:
      self._bar.close()
