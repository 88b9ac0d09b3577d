"""Decides whether an evaluation stops the training, and records the stop in `stopped.json`."""

import contextlib
import os
from typing import Any, BinaryIO, Dict, NamedTuple, Optional

from estimator_train.data.source import Source
from estimator_train.run_dir import RunDir
from estimator_train.settings.flags import EvaluationFlags
from estimator_train.system import json_values, storage
from estimator_train.training.checkpoints.best_checkpoint import BestCheckpoint, BestMetric

_STOP_REASON_FILE = 'stopped.json'
_RULE_SETTINGS = ('early_stopping_steps', 'stop_at_accuracy', 'best_metric', 'best_mode')


class StopReason(NamedTuple):
  """The reason for which an evaluation stopped the training.

  Attributes:
    global_step: the global step of the checkpoint that was evaluated.
    text: the reason in words, for the log and the result.
  """
  global_step: int
  text: str


def find_stop_reason(flags: EvaluationFlags, metrics: Dict[str, Any],
                     best_metric: BestMetric, best: BestCheckpoint) -> Optional[StopReason]:
  """Returns the reason to stop after an evaluation, or None to continue.

  Args:
    flags: the early stopping rules.
    metrics: the metrics and the `global_step` of the evaluation.
    best_metric: the metric that selects the best checkpoint.
    best: the best checkpoint so far, which may be the one that was just evaluated.
  """
  if flags.stop_at_accuracy is not None and metrics['accuracy'] >= flags.stop_at_accuracy:
    return StopReason(metrics['global_step'], 'accuracy {:.4f} reaches {:g}'.format(
        metrics['accuracy'], flags.stop_at_accuracy))
  steps = flags.early_stopping_steps
  since = metrics['global_step'] - max(best.global_step, best.compared_since)
  if steps is not None and since >= steps:
    return StopReason(metrics['global_step'], 'no improvement in {} for {} steps'.format(
        best_metric, since))
  return None


def write_stop_reason(run_dir: RunDir, flags: EvaluationFlags, stop_reason: StopReason,
                      examples_digest: str) -> None:
  """Records the stop, so that the same command does not continue the training."""
  storage.write_json(run_dir.path_to(_STOP_REASON_FILE), dict(
      _rules(flags), examples_digest=examples_digest, global_step=stop_reason.global_step,
      why=stop_reason.text))


def read_stop_reason(run_dir: RunDir, flags: EvaluationFlags, global_step: int,
                     test: Optional[Source] = None) -> Optional[StopReason]:
  """Returns the recorded reason to stop; None if no stop is recorded or the record is ignored.

  Args:
    run_dir: the directory of the run.
    flags: the early stopping rules. A stop that other rules caused is ignored.
    global_step: the last global step of the run. A stop recorded at a later step is ignored.
    test: the test examples of the run. A stop by an evaluation of other examples is ignored.
  """
  def parse(file: BinaryIO) -> Optional[StopReason]:
    recorded = storage.parse_json(file, json_values.fields(
        {'global_step': json_values.integer(), 'why': json_values.text}))
    stop_reason = StopReason(recorded['global_step'], recorded['why'])
    is_valid = _rules(flags).items() <= recorded.items() and (
        test is None or recorded.get('examples_digest') in (None, test.digest()))
    return stop_reason if is_valid and stop_reason.global_step <= global_step else None

  return storage.load_or_warn(run_dir.path_to(_STOP_REASON_FILE), parse,
                              'the next evaluation applies the rules again')


def remove_stop_reason(run_dir: RunDir) -> None:
  """Removes the record of a stop, because training continues."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(run_dir.path_to(_STOP_REASON_FILE))


def _rules(flags: EvaluationFlags) -> Dict[str, Any]:
  """Returns the settings on which the decision to stop depends, by name."""
  return {name: getattr(flags, name) for name in _RULE_SETTINGS}
