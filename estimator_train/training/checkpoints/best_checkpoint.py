"""`model_dir/best/`: the best checkpoint so far, as hard links to its files.

    best/best.json     the path and metrics of the best checkpoint; renamed into place last
    best/STEP/         the files of that checkpoint; other folders are stale or being written
    best/STEP-TASK/    the same, if a task other than the chief evaluated the checkpoint
"""

import contextlib
import fcntl
import glob
import json
import logging
import os
import re
import shutil
from typing import Any, Dict, Iterator, NamedTuple, Optional

from estimator_train.files import atomic

BEST_FOLDER = 'best'
_RECORD_FILE = 'best.json'
_LOG = logging.getLogger('estimator_train')


class BestCheckpoint(NamedTuple):
  """The best checkpoint so far.

  Attributes:
    path: the path of the checkpoint.
    global_step: its global step.
    accuracy, average_loss: its metrics.
    last_evaluated_step: the global step of the checkpoint evaluated last, the best one or not.
  """
  path: str
  global_step: int
  accuracy: float
  average_loss: float
  last_evaluated_step: int

  def as_result(self) -> Dict[str, Any]:
    return {'global_step': self.global_step, 'checkpoint': self.path, 'accuracy': self.accuracy,
            'average_loss': self.average_loss}


def read_best(model_dir: str) -> Optional[BestCheckpoint]:
  """Returns the best checkpoint; None without one, or with a warning if it is damaged."""
  folder = os.path.join(model_dir, BEST_FOLDER)
  path = os.path.join(folder, _RECORD_FILE)
  try:
    with open(path, encoding='utf-8') as file:
      record = json.load(file)
    best = BestCheckpoint(os.path.join(folder, record['checkpoint']), int(record['global_step']),
                          float(record['accuracy']), float(record['average_loss']),
                          int(record['last_evaluated']))
  except FileNotFoundError:
    return None
  except (OSError, ValueError, TypeError, KeyError) as error:
    _LOG.warning('%s cannot be read (%r): continuing without a best checkpoint', path, error)
    return None
  if not _is_complete(best.path):
    _LOG.warning('%s names %s, whose files are missing: continuing without a best checkpoint', path,
                 best.path)
    return None
  return best


def pin(checkpoint: str, model_dir: str, task: Optional[str] = None) -> str:
  """Protects a checkpoint from deletion, by linking its files into a separate folder.

  Args:
    checkpoint: the path of the checkpoint.
    model_dir: the directory of the run.
    task: the type of the task that pins it; None: the chief, or the only process.

  Returns:
    The path of the pinned checkpoint.
  """
  step, suffix = checkpoint.rpartition('-')[2], '-' + task if task else ''
  with _locked_folder(model_dir) as best_folder:
    best = read_best(model_dir)
    current_folder = None if best is None else os.path.dirname(best.path)
    _remove_folders(best_folder, current_folder, task)
    folder = os.path.join(best_folder, step + suffix)
    if folder == current_folder:  # A run resumed from an earlier step has reached it again.
      folder = os.path.join(best_folder, step + '-again' + suffix)
    os.makedirs(folder)
    for path in glob.glob(glob.escape(checkpoint) + '.*'):
      _link_or_copy(path, os.path.join(folder, os.path.basename(path)))
  return os.path.join(folder, os.path.basename(checkpoint))


def promote(pinned: str, metrics: Dict[str, Any], metric: str, model_dir: str) -> BestCheckpoint:
  """Makes a pinned checkpoint the best one if it is better than the current best, else unpins it.

  Args:
    pinned: the path of the checkpoint, as returned by `pin`.
    metrics: its `global_step`, `accuracy` and `average_loss`.
    metric: the metric to compare, `accuracy` or `average_loss`.
    model_dir: the directory of the run.

  Returns:
    The best checkpoint after the comparison.
  """
  new = BestCheckpoint(pinned, metrics['global_step'], metrics['accuracy'],
                       metrics['average_loss'], metrics['global_step'])
  with _locked_folder(model_dir) as folder:
    best = read_best(model_dir)
    previous_folder = os.path.dirname(best.path) if best is not None else None
    if best is None or _is_better(getattr(new, metric), getattr(best, metric), metric):
      best = new
      _LOG.info('best %s so far', metric.replace('_', ' '))
    best = best._replace(last_evaluated_step=new.global_step)
    # Both metrics are stored, because a later run may use the other one as --best_metric.
    atomic.write_json(os.path.join(folder, _RECORD_FILE), {
        'checkpoint': os.path.relpath(best.path, folder), 'global_step': best.global_step,
        'metric': metric, 'value': getattr(best, metric), 'accuracy': best.accuracy,
        'average_loss': best.average_loss, 'last_evaluated': best.last_evaluated_step})
    # Another task may have pinned the replaced checkpoint, but no longer needs it.
    _remove_folders(folder, os.path.dirname(best.path), _task_type(os.path.dirname(pinned)),
                    previous_folder)
  return best


@contextlib.contextmanager
def _locked_folder(model_dir: str) -> Iterator[str]:
  """Yields the folder while holding its lock.

  Two tasks may evaluate: the evaluator, and a chief whose TF_CONFIG does not list it.
  """
  folder = os.path.join(model_dir, BEST_FOLDER)
  os.makedirs(folder, exist_ok=True)
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # The file system does not support locks.
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield folder
  finally:
    os.close(descriptor)


def _is_better(value: float, best: float, metric: str) -> bool:
  return value > best if metric == 'accuracy' else value < best


def _is_complete(checkpoint: str) -> bool:
  """Returns whether all files of a checkpoint exist: the index, and N files `.data-I-of-N`."""
  shards = glob.glob(glob.escape(checkpoint) + '.data-*-of-*')
  return (os.path.exists(checkpoint + '.index') and bool(shards)
          and len(shards) == int(shards[0].rpartition('-of-')[2]))


def _remove_folders(best_folder: str, kept: Optional[str], task: Optional[str],
                    replaced: Optional[str] = None) -> None:
  """Removes the folders that `task` wrote, except `kept`, and the folder `replaced` of any task.

  All other folders stay, because the tasks that wrote them may be reading them.
  """
  for name in os.listdir(best_folder):
    path = os.path.join(best_folder, name)
    if os.path.isdir(path) and path != kept and (_task_type(path) == task or path == replaced):
      shutil.rmtree(path)


def _task_type(folder: str) -> Optional[str]:
  """Returns the type of the task that wrote a folder, taken from the name of the folder."""
  return re.sub(r'^\d+(-again)?-?', '', os.path.basename(folder)) or None


def _link_or_copy(path: str, target: str) -> None:
  try:
    os.link(path, target)
  except OSError:  # The file system does not support hard links.
    with open(path, 'rb') as source, open(target, 'wb') as copy:
      shutil.copyfileobj(source, copy)
      copy.flush()
      os.fsync(copy.fileno())
