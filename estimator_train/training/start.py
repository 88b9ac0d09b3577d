"""Finds where a run starts: the checkpoint to resume from, or to evaluate."""

import time
from typing import NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.distribution.engines.engine import Engine
from estimator_train.distribution.process import EVALUATOR
from estimator_train.errors import PeerLost
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings
from estimator_train.training.checkpoints import chosen_checkpoint, recovery, save_hook
from estimator_train.training.checkpoints.recovery import RecoveredCheckpoint
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.early_stopping import StopReason

_POLL_INTERVAL_SECS = 1.


class Start(NamedTuple):
  """Where a run starts.

  Attributes:
    checkpoint: the checkpoint to resume from, or to evaluate.
    examples_seen: the number of examples trained on before the checkpoint was saved; 0 if the run
      does not train.
    stop_reason: the reason why an evaluation stopped the previous run; None if no evaluation
      stopped that run.
  """
  checkpoint: RecoveredCheckpoint
  examples_seen: int = 0
  stop_reason: Optional[StopReason] = None

  @property
  def step(self) -> int:
    """The global step of the checkpoint; 0 if there is no checkpoint."""
    return self.checkpoint.step


def find_start(settings: Settings, run_dir: RunDir, engine: Engine) -> Start:
  """Finds the checkpoint to resume from, or to evaluate.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: the checkpoint does not exist or does not load.
  """
  if not settings.run.trains:
    return Start(_without_skipped(*chosen_checkpoint.resolve_checkpoint(
        settings.run, settings.checkpoints.checkpoint)))
  if engine.process.role == EVALUATOR:
    _wait_for_checkpoint(run_dir, settings.cluster.start_timeout_secs)
    # The checkpoint is not verified, because the chief may delete it during the verification.
    checkpoint = _without_skipped(*save_hook.latest_checkpoint_and_step(run_dir.path))
  else:
    checkpoint = recovery.find_checkpoint(run_dir.path)
  # Without a record, the previous run is assumed to have taken all steps.
  previous_batch_size = run_dir.flags().get('batch_size', '')
  examples_seen = run_dir.examples_seen(
      checkpoint.step, engine.examples_per_step if not previous_batch_size.isdigit() else
      engine.examples_per_step * int(previous_batch_size) // settings.optimizer.batch_size)
  return Start(checkpoint, examples_seen, early_stopping.read_stop_reason(
      run_dir, settings.evaluation, checkpoint.step))


def _without_skipped(path: Optional[str], step: int) -> RecoveredCheckpoint:
  return RecoveredCheckpoint(path, step, skip_reasons=[])


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> None:
  """Waits until the chief has saved a first checkpoint.

  Raises:
    PeerLost: no checkpoint was saved within `timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while tf.train.latest_checkpoint(run_dir.path) is None:
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint appeared in {} within {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_POLL_INTERVAL_SECS)
