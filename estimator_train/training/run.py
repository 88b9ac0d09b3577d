"""Training and evaluation of a run that has been prepared."""

import logging
import os
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train import model_dir
from estimator_train.errors import PeerLost, StoppedBySignal, TrainingFailed, UserError
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.batching import Share
from estimator_train.peers import TRAINED
from estimator_train.settings import Settings
from estimator_train.timing import Timing
from estimator_train.training import (
    checkpoints,
    frozen_features,
    hooks,
    initial_weights,
    summaries,
    tasks,
    trace,
)
from estimator_train.training.epochs import LogEpochs
from estimator_train.training.preparation import Run
from estimator_train.training.sample_predictions import Sample, SamplePredictions
from estimator_train.training.time_history import TimeHistory
from estimator_train.training.user_errors import reworded

_LOG = logging.getLogger('estimator_train')
_SAVE_SECS = 600
_LOOK_SECS = 1.


class Trained(NamedTuple):
  """What came of a training.

  Attributes:
    timing: when its steps began and ended; no step when there was nothing left to train.
    stopped_by: the signal that ended it early; None without one.
    is_early: whether that, or one of another task, ended it before its last step.
  """
  timing: Timing
  stopped_by: Optional[int]
  is_early: bool


def train(run: Run, evaluate_now: Optional[Callable[[], Any]] = None) -> Trained:
  """Trains up to the last step, or until a signal asks to stop; saves a checkpoint either way.

  Args:
    run: what to train.
    evaluate_now: called at each checkpoint that is due for an evaluation, but for the last.

  Raises:
    TrainingFailed: the loss was not finite.
    UserError: the input could not be read.
  """
  settings, stop_step = run.settings, run.stop_step
  assert stop_step is not None
  first_step = run.first_step
  if first_step >= stop_step:
    _LOG.info('%s is at step %d already, and %d are asked for: nothing to train',
              run.estimator.model_dir, first_step, stop_step)
    return Trained(Timing([], [], [], {}, first_step, None), None, False)
  if first_step:
    _LOG.info('going on from step %d, %d examples, in %s', first_step, run.examples_seen,
              run.estimator.model_dir)
  if run.is_chief:
    model_dir.record_batch_size(run.estimator.model_dir, first_step, run.examples_a_step)
  with reworded(run.dataset.train):
    input_fn = tasks.told_as('preparing its input', run.peers,
                             lambda: _make_train_input_fn(run))()
  run.start_up.end('data')
  history = TimeHistory(run.start_up)
  stop = hooks.StopOnSignal(run.peers)
  progress = hooks.Progress(
      run.estimator.model_dir if run.is_chief else None, stop_step, settings.log_every_steps,
      run.examples_a_step, takes_each_step=run.takes_each_step, schedule=run.converted.schedule)
  board = summaries.WriteSummaries(run.estimator.model_dir if run.is_chief else None, settings,
                                   stop_step, run.dataset.labels)
  finite = hooks.StopAtNonFiniteLoss()
  one_copy = checkpoints.OneCopyOfEach(settings.keep_checkpoint_max)
  saver = _make_saver(run, evaluate_now)
  tracer = _make_tracer(settings, first_step, stop_step)
  watchdog = tasks.make_watchdog(settings, run.peers)
  # Whether the loss is finite must be known before that step's checkpoint is saved.
  some_hooks = [history, watchdog, one_copy, finite, board, progress, stop]
  if run.is_chief:
    some_hooks += [saver, tracer] if tracer else [saver]
  if run.converted.schedule is not None and run.sizes.train is not None:
    some_hooks.append(LogEpochs(run.converted.schedule, run.sizes.train, run.examples_a_step,
                                lambda: progress.step))
  if run.peers is not None:
    some_hooks.append(tasks.TellPeers(run.peers))
  try:
    # Only what logs to the terminal by itself; whoever calls from Python has handlers elsewhere.
    with logging_redirect_tqdm([_LOG] if _LOG.handlers else []), reworded(run.dataset.train):
      _train(run, input_fn, some_hooks)
  except TrainingFailed as error:
    board.fail()
    path, step = checkpoints.latest(run.estimator.model_dir)
    raise TrainingFailed('{}; the last checkpoint is {} of step {}'.format(
        error, path, step)) from error
  finally:
    watchdog.close()
    progress.close()
    stop.close()
  # Another task may not have saved its checkpoint yet.
  last_step = checkpoints.latest(run.estimator.model_dir)[1] if run.is_chief else progress.step
  timing = Timing(history.began, history.ended, history.waited, run.start_up.secs, last_step,
                  finite.loss, saver.pauses)
  if tracer:
    timing = timing._replace(pauses=saver.pauses + tracer.pauses, traced=tracer.traced)
  return Trained(timing, stop.signum, stop.has_stopped)


def _train(run: Run, input_fn: inputs.InputFn,
           some_hooks: Sequence[tf.train.SessionRunHook]) -> None:
  if run.cluster is None or run.peers is None:
    run.converted.trainer.train(input_fn, hooks=some_hooks, max_steps=run.stop_step)
    return
  try:
    # The only way into TensorFlow's coordinator of workers. It evaluates nothing here.
    tf.estimator.train_and_evaluate(
        run.converted.trainer, tf.estimator.TrainSpec(input_fn, run.stop_step, some_hooks),
        tf.estimator.EvalSpec(input_fn))
    run.peers.state(TRAINED)
    # The last step of others may still take something from here.
    run.peers.wait_until_trained(run.cluster.workers)
  except BaseException as error:
    tasks.leave(run.peers, error)
    raise
  finally:
    # Python would complain about it at its end.
    distribute_coordinator._thread_local.server = None


def _make_train_input_fn(run: Run) -> inputs.InputFn:
  settings, converted = run.settings, run.converted
  share = _share(run)
  if converted.frozen is None:
    return inputs.make_train_input_fn(run.dataset, settings, converted.one_hot, run.batch_size,
                                      share)
  assert settings.model_dir is not None
  checkpoint, _ = checkpoints.latest(settings.model_dir)
  features = frozen_features.compute(
      converted.frozen, checkpoint or initial_weights.written_to(settings.model_dir),
      inputs.make_pass(run.dataset, settings), settings, run.devices)
  return inputs.make_feature_input_fn(run.dataset, settings, converted.one_hot, run.batch_size,
                                      share, features)


def _share(run: Run) -> Share:
  """Returns which examples are next for this worker."""
  examples = run.settings.batch_size
  if run.cluster is None:
    return Share(run.examples_seen)
  # Where each worker's step counts as one, some of the last batch may come once more.
  seen = run.examples_seen // examples * examples
  assert run.cluster.worker_number is not None
  return Share(seen, run.num_workers, run.cluster.worker_number, examples // run.num_workers)


def raise_if_stopped(trained: Trained) -> None:
  """Raises StoppedBySignal when a signal ended the training early."""
  if trained.stopped_by is not None:
    raise StoppedBySignal(
        trained.stopped_by,
        'stopped by {} at step {}, which is saved; the same command goes on from there'.format(
            signal.Signals(trained.stopped_by).name, trained.timing.global_step))
  if trained.is_early:
    raise PeerLost('stopped at step {}, as another task was asked to; the same command goes on '
                   'from there'.format(trained.timing.global_step))


def finish(run: Run, figures: Dict[str, Any]) -> None:
  """Says goodbye to the other tasks, and tells them how fast this worker was."""
  if run.peers is not None:
    run.peers.finish(figures)


def wait_for_workers(run: Run) -> Dict[str, Dict[str, Any]]:
  """Waits, on the chief, until the others have said goodbye, and does so too.

  Returns:
    The figures of each other worker, by its name.
  """
  if run.peers is None or run.cluster is None:
    return {}
  notes = run.peers.wait_until_finished(run.cluster.workers)
  run.peers.finish()
  return {str(task): note for task, note in notes.items()}


def evaluate_each(run: Run, evaluate_one: Callable[[str], Dict[str, Any]]) -> Dict[str, Any]:
  """Evaluates each checkpoint once, as they come, up to that of the last step.

  Args:
    run: of the evaluator of a cluster.
    evaluate_one: evaluates the checkpoint of this path.

  Returns:
    What the last evaluation did.
  """
  assert run.stop_step is not None
  result: Dict[str, Any] = {'global_step': -1}
  seen: Set[str] = set()
  while result['global_step'] < run.stop_step:
    state = tf.train.get_checkpoint_state(run.estimator.model_dir)
    new = [path for path in (state.all_model_checkpoint_paths if state else ())
           if path not in seen and tf.train.checkpoint_exists(path)]
    if not new:
      time.sleep(_LOOK_SECS)
      continue
    seen.add(new[0])
    result = evaluate_one(new[0])
  return result


def evaluate(run: Run, path: Optional[str] = None) -> Tuple[Dict[str, Any], List[Sample]]:
  """Evaluates a checkpoint on every test example.

  Args:
    run: has the examples.
    path: of the checkpoint; None: the latest.

  Returns:
    (`accuracy`, `average_loss`, `examples`, `confusion_matrix`, `global_step` and `checkpoint`,
    a few of the examples)

  Raises:
    UserError: the input could not be read, or not every example was counted.
  """
  path = path or checkpoints.latest(run.estimator.model_dir)[0]
  samples = SamplePredictions(run.sizes.test, run.batch_size)
  # TensorFlow's own would not be writable for the group, whatever the umask says.
  os.makedirs(run.estimator.eval_dir(), exist_ok=True)
  with reworded(run.dataset.test):
    counted = run.estimator.evaluate(
        inputs.make_eval_input_fn(run.dataset, run.settings, run.converted.one_hot,
                                  run.batch_size), hooks=[samples], checkpoint_path=path)
  if run.sizes.test not in (None, counted['examples']):
    raise UserError('the evaluation did not see every example',
                    '{} of {}'.format(counted['examples'], run.sizes.test),
                    'check whether the files were changed while they were read')
  return {
      'accuracy': float(counted['accuracy']),
      'average_loss': float(counted['average_loss']),
      'examples': int(counted['examples']),
      'confusion_matrix': counted['confusion_matrix'].tolist(),
      'global_step': int(counted['global_step']),
      'checkpoint': path,
  }, samples.samples


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


def _make_saver(run: Run,
                evaluate_now: Optional[Callable[[], Any]]) -> checkpoints.SaveCheckpoints:
  settings, stop_step = run.settings, run.stop_step
  assert stop_step is not None and settings.model_dir is not None
  listeners = []
  save_steps = settings.save_checkpoints_steps
  if settings.eval_every_steps and evaluate_now:
    save_steps = save_steps or settings.eval_every_steps
    listeners.append(checkpoints.AtEverySteps(
        settings.eval_every_steps, stop_step, tasks.told_as('evaluating', run.peers, evaluate_now)))
  save_secs = settings.save_checkpoints_secs
  if save_steps is None and save_secs is None:
    save_secs = _SAVE_SECS
  return checkpoints.SaveCheckpoints(settings.model_dir, save_steps, save_secs, listeners)
