"""The hooks of a training run, put together."""

import logging
from typing import Callable, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.process.signals import Noted
from estimator_train.reports.step_times import Timing
from estimator_train.settings import Settings
from estimator_train.tf_patches import estimator as estimator_patches, replicated_variables
from estimator_train.training import cluster_tasks
from estimator_train.training.checkpoints import best_checkpoint, save_hook
from estimator_train.training.checkpoints.retrying_saver import PatientSaver
from estimator_train.training.hooks import finite, progress, summaries, trace
from estimator_train.training.hooks.epochs import LogEpochs
from estimator_train.training.hooks.time_history import TimeHistory
from estimator_train.training.plan import Run

_LOG = logging.getLogger('estimator_train')
_SAVE_SECS = 600


class RunHooks:
  """What goes on around the steps of a run, in this order.

  Args:
    run: that trains.
    evaluate_now: called at each checkpoint that is due for an evaluation, but for the last;
      returns why to stop, None: go on.
    noted: the signals that came.

  Attributes:
    finite: ends it when the loss is not.
    board: writes TensorBoard's data.
    progress: shows how far it is.
    stop: ends it early.
    all: of them.
  """

  def __init__(self, run: Run, evaluate_now: Optional[Callable[[], Optional[str]]],
               noted: Noted) -> None:
    settings, stop_step = run.settings, run.stop_step
    assert stop_step is not None
    written_to = run.estimator.model_dir if run.is_chief else None
    if written_to is not None:
      estimator_patches.open_event_file(written_to)
    self._start_up = run.start_up
    self._history = TimeHistory(run.start_up)
    self._watchdog = cluster_tasks.make_watchdog(settings, run.peers)
    self.finite = finite.StopAtNonFiniteLoss(settings.on_nan == 'skip', run.converted.schedule)
    self.board = summaries.WriteSummaries(written_to, settings, stop_step, run.dataset.labels)
    self.progress = progress.Progress(
        written_to, stop_step, settings.log_every_steps, run.examples_a_step,
        takes_each_step=run.takes_each_step, schedule=run.converted.schedule)
    self.stop = progress.StopOnSignal(noted, run.peers)
    self._saver = _make_saver(run, evaluate_now, self.stop, noted)
    self._tracer = _make_tracer(settings, run.first_step, stop_step)
    # Whether the loss is finite must be known before that step's checkpoint is saved.
    self.all: List[tf.train.SessionRunHook] = [
        self._history, self._watchdog,
        replicated_variables.OneCopyOfEach(settings.keep_checkpoint_max),
        self.finite, self.board, self.progress]
    if run.is_chief:
      self.all += [self._saver, self._tracer] if self._tracer else [self._saver]
    self.all += [progress.SaveOnSignal(noted, self._saver.save_now if run.is_chief else None),
                 self.stop]
    if run.converted.schedule is not None and run.sizes.train is not None:
      self.all.append(LogEpochs(run.converted.schedule, run.sizes.train, run.examples_a_step,
                                lambda: self.progress.step))
    if run.peers is not None:
      self.all.append(cluster_tasks.TellPeers(run.peers))

  def close(self) -> None:
    """Gives back what they hold of the process; also when the run failed."""
    self._watchdog.close()
    self.progress.close()

  def timing(self, last_step: int) -> Timing:
    """Returns when the steps of the run, up to this one, began and ended."""
    history = self._history
    timing = Timing(history.began, history.ended, history.waited, self._start_up.secs, last_step,
                    self.finite.loss, self._saver.pauses, forgotten=history.forgotten)
    if self._tracer is None:
      return timing
    return timing._replace(pauses=self._saver.pauses + self._tracer.pauses,
                           traced=self._tracer.traced)


def _make_tracer(settings: Settings, first_step: int,
                 stop_step: int) -> Optional[trace.TraceSteps]:
  if settings.trace_steps is None:
    return None
  assert settings.model_dir is not None
  first, last = settings.trace_steps
  if last <= first_step or first > stop_step:
    _LOG.warning('no step of --trace_steps=%d:%d is run: this run is of steps %d to %d', first,
                 last, first_step + 1, stop_step)
    return None
  return trace.TraceSteps(settings.model_dir, first, min(last, stop_step))


def _make_saver(run: Run, evaluate_now: Optional[Callable[[], Optional[str]]],
                stop: progress.StopOnSignal, noted: Noted) -> save_hook.SaveCheckpoints:
  settings, stop_step = run.settings, run.stop_step
  assert stop_step is not None and settings.model_dir is not None
  listeners = []
  save_steps = settings.save_checkpoints_steps
  if settings.eval_every_steps and evaluate_now:
    save_steps = save_steps or settings.eval_every_steps
    evaluate = cluster_tasks.told_as('evaluating', run.peers, evaluate_now)

    def evaluate_and_ask() -> None:
      if stop.is_urgent:  # The next start makes up for it.
        return
      why = evaluate()
      if why is not None:
        _LOG.info('stopping: %s', why)
        stop.ask()

    listeners.append(save_hook.AtEverySteps(
        settings.eval_every_steps, _evaluated_up_to(run), stop_step, evaluate_and_ask))
  save_secs = settings.save_checkpoints_secs
  if save_steps is None and save_secs is None:
    save_secs = _SAVE_SECS
  saving = PatientSaver(settings.model_dir, settings.save_retry_secs,
                        is_stopping=lambda: noted.stop is not None)
  return save_hook.SaveCheckpoints(settings.model_dir, save_steps, save_secs, saving, listeners)


def _evaluated_up_to(run: Run) -> int:
  """Returns the step before which no evaluation is due any more.

  That of the checkpoint that the run goes on from is, if the run before was killed in it.
  """
  settings = run.settings
  assert settings.model_dir is not None and settings.eval_every_steps is not None
  best = best_checkpoint.read(settings.model_dir)
  is_missing = best is None or best.last_evaluated != run.first_step
  if is_missing and run.first_step % settings.eval_every_steps == 0:
    return max(run.first_step - 1, 0)
  return run.first_step
