"""`model_dir/best/`: the best checkpoint so far, with links of its own to the files.

    best/best.json     which checkpoint it is, and how well it does; renamed into place last
    best/STEP/         the files of that checkpoint; other folders are left over, or being made
    best/STEP-TASK/    the same, of the task of a cluster that evaluates beside the chief
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

FOLDER = 'best'
_FILE = 'best.json'
_LOG = logging.getLogger('estimator_train')


class Best(NamedTuple):
  """The best checkpoint.

  Attributes:
    path: of the checkpoint.
    global_step: of it.
    accuracy, average_loss: how well it does.
    last_evaluated: the global step of the last evaluation, the best or not.
  """
  path: str
  global_step: int
  accuracy: float
  average_loss: float
  last_evaluated: int

  def as_result(self) -> Dict[str, Any]:
    return {'global_step': self.global_step, 'checkpoint': self.path, 'accuracy': self.accuracy,
            'average_loss': self.average_loss}


def read(model_dir: str) -> Optional[Best]:
  """Returns what is kept; None, and a warning if that is by mistake, where nothing is."""
  folder = os.path.join(model_dir, FOLDER)
  path = os.path.join(folder, _FILE)
  try:
    with open(path, encoding='utf-8') as file:
      told = json.load(file)
    best = Best(os.path.join(folder, told['checkpoint']), int(told['global_step']),
                float(told['accuracy']), float(told['average_loss']),
                int(told['last_evaluated']))
  except FileNotFoundError:
    return None
  except (OSError, ValueError, TypeError, KeyError) as error:
    _LOG.warning('%s cannot be read (%r): no checkpoint counts as the best one', path, error)
    return None
  if not _is_whole(best.path):
    _LOG.warning('%s names %s, which is gone: no checkpoint counts as the best one', path,
                 best.path)
    return None
  return best


def pin(checkpoint: str, model_dir: str, task: Optional[str] = None) -> str:
  """Links the checkpoint's files into a folder of their own, before anybody deletes them.

  Args:
    checkpoint: its path.
    model_dir: of the run.
    task: the type of the task that pins it; None: the chief, or the only process.

  Returns:
    The path of the checkpoint there.
  """
  step, suffix = checkpoint.rpartition('-')[2], '-' + task if task else ''
  with _alone(model_dir) as best_folder:
    best = read(model_dir)
    taken = None if best is None else os.path.dirname(best.path)
    _clear(best_folder, taken, task)
    folder = os.path.join(best_folder, step + suffix)
    if folder == taken:  # Its step was trained again.
      folder = os.path.join(best_folder, step + '-again' + suffix)
    os.makedirs(folder)
    for path in glob.glob(glob.escape(checkpoint) + '.*'):
      _link(path, os.path.join(folder, os.path.basename(path)))
  return os.path.join(folder, os.path.basename(checkpoint))


def promote(pinned: str, figures: Dict[str, Any], metric: str, model_dir: str) -> Best:
  """Makes a pinned checkpoint the best one if it is better; else unpins it.

  Args:
    pinned: its path, as `pin` returns it.
    figures: `global_step`, `accuracy` and `average_loss` of it.
    metric: which of the last two makes a checkpoint the best.
    model_dir: of the run.

  Returns:
    The best now.
  """
  new = Best(pinned, figures['global_step'], figures['accuracy'], figures['average_loss'],
             figures['global_step'])
  with _alone(model_dir) as folder:
    best = read(model_dir)
    before = os.path.dirname(best.path) if best is not None else None
    if best is None or _is_better(getattr(new, metric), getattr(best, metric), metric):
      best = new
      _LOG.info('the best %s so far', metric.replace('_', ' '))
    best = best._replace(last_evaluated=new.global_step)
    # Both figures stay, as another start may go by the other one.
    atomic.write_json(os.path.join(folder, _FILE), {
        'checkpoint': os.path.relpath(best.path, folder), 'global_step': best.global_step,
        'metric': metric, 'value': getattr(best, metric), 'accuracy': best.accuracy,
        'average_loss': best.average_loss, 'last_evaluated': best.last_evaluated})
    # The best before may be of another task, which is done with it.
    _clear(folder, os.path.dirname(best.path), _task(os.path.dirname(pinned)), before)
  return best


@contextlib.contextmanager
def _alone(model_dir: str) -> Iterator[str]:
  """Gives the folder, while no other process changes it: a chief that is told of no evaluator
  evaluates as well."""
  folder = os.path.join(model_dir, FOLDER)
  os.makedirs(folder, exist_ok=True)
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # A file system without locks.
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield folder
  finally:
    os.close(descriptor)


def _is_better(value: float, than: float, metric: str) -> bool:
  return value > than if metric == 'accuracy' else value < than


def _is_whole(checkpoint: str) -> bool:
  """Whether all files of a checkpoint are there: the index, and N named `.data-I-of-N`."""
  parts = glob.glob(glob.escape(checkpoint) + '.data-*-of-*')
  return (os.path.exists(checkpoint + '.index') and bool(parts)
          and len(parts) == int(parts[0].rpartition('-of-')[2]))


def _clear(folder: str, but: Optional[str], task: Optional[str],
           beaten: Optional[str] = None) -> None:
  """Removes a task's folders but one, and what was beaten; another task may read its own."""
  for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if os.path.isdir(path) and path != but and (_task(path) == task or path == beaten):
      shutil.rmtree(path)


def _task(folder: str) -> Optional[str]:
  """Returns the type of the task whose folder it is, by its name."""
  return re.sub(r'^\d+(-again)?-?', '', os.path.basename(folder)) or None


def _link(path: str, to: str) -> None:
  try:
    os.link(path, to)
  except OSError:  # A file system without links.
    with open(path, 'rb') as source, open(to, 'wb') as copy:
      shutil.copyfileobj(source, copy)
      copy.flush()
      os.fsync(copy.fileno())
