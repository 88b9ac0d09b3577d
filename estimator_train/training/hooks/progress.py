"""The hook that shows the progress of a training."""

import logging
import sys
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from estimator_train.training.hooks import logged_steps, summaries
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class Progress(tf.train.SessionRunHook):
  """Shows step, loss, examples/sec and time left: a bar on a terminal, elsewhere plain lines.

  TensorBoard gets `examples_per_sec` and `step_secs`: examples and steps over the wall time since
  it got them last, with whatever happened between the steps; and `learning_rate`, that of the step.

  Args:
    counter: counts the steps.
    model_dir: of the run; None: of another task, which writes nothing.
    stop_step: the global step to train up to.
    log_every_steps: steps between two lines, while they are few; see logged_steps.py.
    examples_per_step: over all replicas.
    schedule: the learning rate, which is shown and written too; None: it is not known.
    clock: in seconds.
  """

  def __init__(self, counter: StepCounter, model_dir: Optional[str], stop_step: int,
               log_every_steps: int, examples_per_step: int, schedule: Optional[Schedule] = None,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._counter = counter
    self._model_dir = model_dir
    self._stop_step = stop_step
    self._every = log_every_steps
    self._examples_per_step = examples_per_step
    self._schedule = schedule
    self._clock = clock
    self._shown_step = 0
    self._shown_at = 0.
    self._bar: Optional[tqdm] = None

  def begin(self) -> None:
    self._fetch = tf.train.SessionRunArgs(summaries.training_loss())

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._shown_step = self._counter.global_step
    self._shown_at = self._clock()
    if sys.stderr.isatty():
      self._bar = tqdm(total=self._stop_step, initial=self._shown_step, unit='step',
                       file=sys.stderr, dynamic_ncols=True)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    step = self._counter.global_step + 1
    if logged_steps.is_logged(step, self._every) or step == self._stop_step:
      return self._fetch
    return None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is not None:
      self._counter.refresh(run_context.session)
    self._move_bar()
    if run_values.results is not None:
      self._show(run_values.results)

  def _show(self, loss: float) -> None:
    now, step = self._clock(), self._counter.global_step
    step_secs = (now - self._shown_at) / (step - self._shown_step)
    rate = self._examples_per_step / step_secs
    self._shown_step, self._shown_at = step, now
    scalars = {'examples_per_sec': rate, 'step_secs': step_secs}
    text = 'loss {:.4f}, '.format(loss)
    if self._schedule is not None:
      scalars['learning_rate'] = self._schedule.rate_at(step - 1)
      text += 'learning rate {:g}, '.format(scalars['learning_rate'])
    if self._model_dir is not None:
      summaries.write_scalars(self._model_dir, scalars, step)
    if self._bar is not None:
      self._bar.set_postfix_str('{}{:,.0f} examples/sec'.format(text, rate))
    else:
      _LOG.info('step %d/%d: %s%.0f examples/sec, %.0f s left', step, self._stop_step, text,
                rate, (self._stop_step - step) * step_secs)

  def _move_bar(self) -> None:
    if self._bar is not None:
      self._bar.update(self._counter.global_step - self._bar.n)

  def close(self) -> None:
    """Leaves the terminal tidy; also when the run failed."""
    if self._bar is not None:
      self._bar.close()
