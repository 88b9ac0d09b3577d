"""Training and evaluation of a run that has been prepared."""

import logging
import signal
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set

import tensorflow.compat.v1 as tf
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.cluster.heartbeats import TRAINED
from estimator_train.errors import NotSaved, PeerLost, StoppedBySignal, TrainingFailed
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.batching import Share
from estimator_train.inputs.file_errors import reworded
from estimator_train.process.signals import Noted
from estimator_train.reports.step_times import Timing
from estimator_train.run_dir import run_files
from estimator_train.tf_patches import estimator as estimator_patches, model_to_estimator
from estimator_train.training import cluster_tasks, frozen_features
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.plan import Run
from estimator_train.training.run_hooks import RunHooks

_LOG = logging.getLogger('estimator_train')
_LOOK_SECS = 1.


class Trained(NamedTuple):
  """What came of a training.

  Attributes:
    timing: when its steps began and ended; no step when there was nothing left to train.
    stopped_by: the signal that ended it early; None without one.
    is_early: whether that, or one of another task, ended it before its last step.
    stopped_early: why an evaluation ended it before; None where none did.
  """
  timing: Timing
  stopped_by: Optional[int] = None
  is_early: bool = False
  stopped_early: Optional[str] = None


def train(run: Run, evaluate_now: Optional[Callable[[], Optional[str]]] = None,
          noted: Optional[Noted] = None) -> Trained:
  """Trains up to the last step, or until a signal or an evaluation asks to stop.

  It saves a checkpoint either way.

  Args:
    run: what to train.
    evaluate_now: called at each checkpoint that is due for an evaluation, but for the last;
      returns why to stop, None: go on.
    noted: notes the signals, from the first step on until its owner leaves it, so that what comes
      after the training is not torn apart by one; None: until the training is over.

  Raises:
    TrainingFailed: the loss or the weights were not finite.
    UserError: the input could not be read.
  """
  if noted is None:
    with Noted() as own:
      return train(run, evaluate_now, own)
  settings, stop_step = run.settings, run.stop_step
  assert stop_step is not None
  first_step = run.first_step
  if first_step >= stop_step:
    _LOG.info('%s is at step %d already, and %d are asked for: nothing to train',
              run.estimator.model_dir, first_step, stop_step)
    return Trained(Timing([], [], [], {}, first_step, None))
  if run.stopped_early is not None:
    _LOG.info('%s was stopped at step %d (%s): nothing to train; another --early_stopping_steps '
              'or --stop_at_accuracy, or none, goes on', run.estimator.model_dir, first_step,
              run.stopped_early)
    return Trained(Timing([], [], [], {}, first_step, None), stopped_early=run.stopped_early)
  if run.is_chief:
    early_stopping.forget(settings)
  if first_step:
    _LOG.info('going on from step %d, %d examples, in %s', first_step, run.examples_seen,
              run.estimator.model_dir)
  if run.is_chief:
    run_files.record_batch_size(run.estimator.model_dir, first_step, run.examples_a_step)
  with reworded(run.dataset.train):
    input_fn = cluster_tasks.told_as('preparing its input', run.peers,
                                     lambda: _make_train_input_fn(run))()
  run.start_up.end('data')
  hooks = RunHooks(run, evaluate_now, noted)
  try:
    # Only what logs to the terminal by itself; whoever calls from Python has handlers elsewhere.
    with logging_redirect_tqdm([_LOG] if _LOG.handlers else []), \
        estimator_patches.without_nan_hook(), reworded(run.dataset.train):
      _train(run, input_fn, hooks.all)
  except TrainingFailed as error:
    hooks.board.fail()
    last = run_files.last_checkpoint(run.estimator.model_dir)
    text = str(error) if isinstance(error, NotSaved) else '{}; {}'.format(
        error, hooks.finite.course)
    raise TrainingFailed('{}; {}'.format(
        text, 'there is no checkpoint' if last is None else 'the last good checkpoint is ' + last
    )) from error
  finally:
    hooks.close()
  # Another task may not have saved its checkpoint yet.
  last_step = (save_hook.latest(run.estimator.model_dir)[1] if run.is_chief
               else hooks.progress.step)
  stop, why = hooks.stop, None
  if stop.has_stopped and noted.stop is None:
    why = early_stopping.recorded(settings, last_step)
  return Trained(hooks.timing(last_step), noted.stop, stop.has_stopped and why is None, why)


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
    cluster_tasks.leave(run.peers, error)
    raise
  finally:
    estimator_patches.release_server()


def _make_train_input_fn(run: Run) -> inputs.InputFn:
  settings, converted = run.settings, run.converted
  share = _share(run)
  if converted.frozen is None:
    return inputs.make_train_input_fn(run.dataset, settings, converted.one_hot, run.batch_size,
                                      share)
  assert settings.model_dir is not None
  checkpoint, _ = save_hook.latest(settings.model_dir)
  features = frozen_features.compute(
      converted.frozen, checkpoint or model_to_estimator.initial_weights_path(settings.model_dir),
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


def raise_if_stopped(trained: Trained, noted: Noted) -> None:
  """Raises StoppedBySignal when a signal came, be it after the training."""
  signum = trained.stopped_by or noted.stop
  if signum is not None:
    raise StoppedBySignal(
        signum, 'stopped by {} at step {}, which is saved; the same command goes on from there'
        .format(signal.Signals(signum).name, trained.timing.global_step))
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
    try:
      result = evaluate_one(new[0])
    except FileNotFoundError:
      _LOG.warning('%s was deleted before it could be evaluated', new[0])
  return result
