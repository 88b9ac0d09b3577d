"""The hooks of a training run besides its clock: progress, and what signals ask for."""

import collections
import logging
import math
import statistics
import sys
import time
from typing import Any, Callable, Deque, Optional

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from estimator_train.cluster.heartbeats import Peers
from estimator_train.process.signals import Noted
from estimator_train.training.hooks import logged_steps, summaries
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
# Until every other task knows what this one has told.
_TOLD_SECS = 1.
_STEPS = 50


class Progress(tf.train.SessionRunHook):
  """Shows step, loss, examples/sec and time left: a bar on a terminal, elsewhere plain lines.

  TensorBoard gets `examples_per_sec` and `step_secs`: examples and steps over the wall time since
  it got them last, with whatever happened between the steps; and `learning_rate`, that of the step.

  Args:
    model_dir: of the run; None: of another task, which writes nothing.
    stop_step: the global step to train up to.
    log_every_steps: steps between two lines, while they are few; see logged_steps.py.
    batch_size: examples of a step, over all replicas.
    takes_each_step: whether no other worker takes steps of its own in between.
    schedule: the learning rate, which is shown and written too; None: it is not known.
    clock: in seconds.
  """

  def __init__(self, model_dir: Optional[str], stop_step: int, log_every_steps: int,
               batch_size: int, takes_each_step: bool = True,
               schedule: Optional[Schedule] = None,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._model_dir = model_dir
    self._stop_step = stop_step
    self._every = log_every_steps
    self._batch_size = batch_size
    self._takes_each_step = takes_each_step
    self._schedule = schedule
    self._clock = clock
    self._step = 0
    self._shown_step = 0
    self._shown_at = 0.
    self._bar: Optional[tqdm] = None

  @property
  def step(self) -> int:
    """The global step that this task knows to be reached."""
    return self._step

  def begin(self) -> None:
    self._fetch = tf.train.SessionRunArgs(summaries.training_loss())

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._step = self._shown_step = int(session.run(tf.train.get_global_step()))
    self._shown_at = self._clock()
    if sys.stderr.isatty():
      self._bar = tqdm(total=self._stop_step, initial=self._step, unit='step', file=sys.stderr,
                       dynamic_ncols=True)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    self._step += 1
    if logged_steps.is_logged(self._step, self._every) or self._step == self._stop_step:
      return self._fetch
    return None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is None:
      self._move_bar()
      return
    if not self._takes_each_step:
      self._step = max(int(run_context.session.run(tf.train.get_global_step())), self._step)
    self._move_bar()
    now = self._clock()
    step_secs = (now - self._shown_at) / (self._step - self._shown_step)
    rate = self._batch_size / step_secs
    self._shown_step, self._shown_at = self._step, now
    scalars = {'examples_per_sec': rate, 'step_secs': step_secs}
    text = 'loss {:.4f}, '.format(run_values.results)
    if self._schedule is not None:
      scalars['learning_rate'] = self._schedule.rate_at(self._step - 1)
      text += 'learning rate {:g}, '.format(scalars['learning_rate'])
    if self._model_dir is not None:
      summaries.write_scalars(self._model_dir, scalars, self._step)
    if self._bar is not None:
      self._bar.set_postfix_str('{}{:,.0f} examples/sec'.format(text, rate))
    else:
      _LOG.info('step %d/%d: %s%.0f examples/sec, %.0f s left', self._step, self._stop_step, text,
                rate, (self._stop_step - self._step) * step_secs)

  def _move_bar(self) -> None:
    if self._bar is not None:
      self._bar.update(self._step - self._bar.n)

  def close(self) -> None:
    """Leaves the terminal tidy; also when the run failed."""
    if self._bar is not None:
      self._bar.close()


class StopOnSignal(tf.train.SessionRunHook):
  """Turns a signal into a stop after the running step; Estimator then saves and closes.

  Workers that train together have to stop at the same step, or the last would wait for ever. So
  the one that is asked to names a step a little ahead, and all stop there.

  It comes after the hook that evaluates, which may ask for the same.

  Args:
    noted: the signals, which it has noted as soon as there is something to save.
    peers: the other tasks; None: there are none.
    clock: in seconds.

  Attributes:
    has_stopped: whether a signal, another task's, or `ask` has ended the run.
  """

  def __init__(self, noted: Noted, peers: Optional[Peers] = None,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self._noted = noted
    self._peers = peers
    self._clock = clock
    self.has_stopped = False
    self._is_asked = False
    self._has_told = False
    self._step = 0
    self._ended = 0.
    self._step_secs: Deque[float] = collections.deque(maxlen=_STEPS)

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._step = int(session.run(tf.train.get_global_step()))
    self._ended = self._clock()
    self._noted.begin()

  def ask(self) -> None:
    """Asks for the end that a signal would bring."""
    self._is_asked = True

  @property
  def is_urgent(self) -> bool:
    """Whether a signal, to this task or another one, wants the end."""
    by_another = (self._peers is not None and self._peers.stop_at is not None
                  and not self._has_told)
    return self._noted.stop is not None or by_another

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._step += 1
    is_asked = self._is_asked or self._noted.stop is not None
    if self._peers is None:
      if is_asked:
        self.has_stopped = True
        run_context.request_stop()
      return
    before, self._ended = self._ended, self._clock()
    self._step_secs.append(self._ended - before)
    if is_asked and not self._has_told:
      self._has_told = True
      # Of some steps, as checkpoints and evaluations count into others.
      steps = math.ceil(_TOLD_SECS / statistics.median(self._step_secs))
      self._peers.stop_all_at(self._step + steps)
    stop_at = self._peers.stop_at
    if stop_at is not None and self._step >= stop_at:
      self.has_stopped = True
      run_context.request_stop()


class SaveOnSignal(tf.train.SessionRunHook):
  """Has a checkpoint saved after the step in which SIGUSR1 came; training goes on.

  Args:
    noted: the signals.
    save_now: saves one, and returns its path, None when it cannot yet; None: another task saves.
  """

  def __init__(self, noted: Noted,
               save_now: Optional[Callable[[tf.Session], Optional[str]]]) -> None:
    self._noted = noted
    self._save_now = save_now

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if not self._noted.save:
      return
    self._noted.save = False
    if self._save_now is None:
      _LOG.info('SIGUSR1: it is the chief that saves checkpoints')
      return
    path = self._save_now(run_context.session)
    if path is not None:
      _LOG.info('SIGUSR1: saved %s', path)
