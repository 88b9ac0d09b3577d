"""Finds the checkpoint from which a run starts, or which `--checkpoint` names."""

import contextlib
import glob
import logging
import os
import re
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint
from estimator_train.checkpoints.pinned_files import (
  ReadableCheckpoint,
  pin_current_checkpoint,
  pin_files,
  pin_verified_checkpoint,
)
from estimator_train.distribution.process import EVALUATOR, Process
from estimator_train.errors import PeerLost, UserError, one_line
from estimator_train.run_dir import RunDir, default_folder, read_checkpoint_list
from estimator_train.settings import Settings
from estimator_train.settings.flags import NAMED_CHECKPOINTS

_LOG = logging.getLogger('estimator_train')
CHECKPOINT_FILE_PATTERN = re.compile(r'model\.ckpt-(\d+)\.(index|data-\d+-of-\d+)$')
_LISTED_NAME = re.compile(r'model\.ckpt-(\d+)$')
_POLL_INTERVAL_SECS = 1.


class Start(NamedTuple):
  """The checkpoint with which a run starts.

  Attributes:
    checkpoint: the path of the checkpoint to resume from, or to evaluate; None: there is none.
    step: the global step of the checkpoint; 0 if there is no checkpoint.
    checkpoint_run_dir: the folder of the run that has saved the checkpoint.
  """
  checkpoint: Optional[str]
  step: int
  checkpoint_run_dir: RunDir


def find_start(settings: Settings, run_dir: RunDir, process: Process,
               checkpoint_to_evaluate: Optional[ReadableCheckpoint]) -> Start:
  """Finds the checkpoint to resume from, or to evaluate.

  Args:
    checkpoint_to_evaluate: a result of pin_requested_checkpoint; None if the run trains.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: there are checkpoints, but none can be loaded.
  """
  checkpoint_run_dir = find_run_dir_of_requested_checkpoint(settings, run_dir)
  if checkpoint_to_evaluate is not None:
    return Start(checkpoint_to_evaluate.readable_path, checkpoint_to_evaluate.global_step,
                 checkpoint_run_dir)
  if process.role == EVALUATOR:
    checkpoint = _wait_for_checkpoint(run_dir, settings.cluster.start_timeout_secs)
    return Start(checkpoint, _read_global_step(checkpoint), checkpoint_run_dir)
  return Start(*find_intact_checkpoint(run_dir.path), checkpoint_run_dir)


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> str:
  """Waits until the chief has saved a first checkpoint, and pins the latest one.

  Raises:
    PeerLost: no checkpoint was saved within `timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while True:
    latest = find_latest_checkpoint(run_dir.path)
    if latest is not None:
      with contextlib.suppress(FileNotFoundError):  # The chief has deleted it meanwhile.
        return best_checkpoint.pin_for_evaluation(latest, run_dir.path, EVALUATOR)
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint appeared in {} within {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_POLL_INTERVAL_SECS)


def find_latest_checkpoint(model_dir: str) -> Optional[str]:
  """Returns the path of the latest checkpoint in TensorFlow's list; None if it does not exist."""
  if '://' in model_dir:  # Such as gs://bucket/run, with `convert`.
    path: Optional[str] = tf.train.latest_checkpoint(model_dir)
    return path
  latest = next(iter(read_checkpoint_list(model_dir)), None)
  exists = latest and (os.path.isfile(latest + '.index') or os.path.isfile(latest))
  return latest if exists else None


def find_latest_checkpoint_and_step(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint; (None, 0) if there is none."""
  path = find_latest_checkpoint(model_dir)
  return path, 0 if path is None else _read_global_step(path)


def _read_global_step(checkpoint: str) -> int:
  return int(tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP))


def find_intact_checkpoint(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint that can be read completely.

  Returns (None, 0) if no checkpoint was saved completely; see pin_intact_checkpoint.
  """
  with contextlib.ExitStack() as stack:
    pinned = pin_intact_checkpoint(model_dir, stack)
  return (None, 0) if pinned is None else (pinned.path, pinned.global_step)


def pin_intact_checkpoint(model_dir: str,
                          stack: contextlib.ExitStack) -> Optional[ReadableCheckpoint]:
  """Finds the latest checkpoint that can be read completely, and keeps it readable.

  The search first tries the latest checkpoint in TensorFlow's `checkpoint` file, because TensorFlow
  lists a checkpoint only after it has written all files of the checkpoint. It then tries all other
  checkpoints, the newest first. It reads all values, because only reading verifies the checksums.
  The log names the checkpoints that were skipped, and the reasons. If another process saves or
  deletes checkpoints meanwhile, the search starts over.

  Args:
    stack: keeps the checkpoint readable until it is closed.

  Returns:
    The checkpoint; None if no checkpoint was saved completely.

  Raises:
    UserError: there are checkpoints, but none can be loaded. An incomplete checkpoint of step 0 is
      no error, because nothing is lost with it.
  """
  found: Optional[ReadableCheckpoint]
  skip_reasons: Dict[int, str]
  while True:
    listed_steps, steps = list_steps_in_checkpoint_file(model_dir), list_steps_on_disk(model_dir)
    found, skip_reasons = None, {}
    with contextlib.ExitStack() as attempt_stack:
      for step in dict.fromkeys(listed_steps[:1] + steps):
        try:
          found = pin_verified_checkpoint(checkpoint_path(model_dir, step), step, attempt_stack)
          break
        except (OSError, ValueError) as error:
          skip_reasons[step] = '{}: {}'.format(checkpoint_path(model_dir, step), one_line(
              getattr(error, 'strerror', None) or str(error)))
      if not skip_reasons or (listed_steps, steps) == (
          list_steps_in_checkpoint_file(model_dir), list_steps_on_disk(model_dir)):
        stack.enter_context(attempt_stack.pop_all())
        break
  # A run that was killed while it saved its first checkpoint, which is that of step 0, has lost
  # nothing.
  if found is None and any(step > 0 or step in listed_steps for step in skip_reasons):
    raise UserError('no checkpoint in --model_dir can be loaded', '; '.join(skip_reasons.values()),
                    'restore a copy of a checkpoint, or give another --model_dir to start over; '
                    'nothing was deleted')
  for reason in skip_reasons.values():
    _LOG.warning('skipping a checkpoint that cannot be loaded: %s', reason)
  return found


@contextlib.contextmanager
def pin_requested_checkpoint(settings: Settings, run_dir: RunDir) -> Iterator[ReadableCheckpoint]:
  """Finds the checkpoint that `--checkpoint` names, and keeps it readable within the `with` block.

  A process that trains in the same folder may delete the checkpoint meanwhile.

  Raises:
    UserError: the checkpoint does not exist or cannot be read.
  """
  flag_value = settings.checkpoints.checkpoint
  with contextlib.ExitStack() as stack:
    if flag_value == 'latest':
      found = pin_intact_checkpoint(run_dir.path, stack)
      if found is None:
        similar_path = default_folder.find_similar_run(run_dir.path)
        raise UserError('there is no checkpoint in --model_dir', run_dir.path,
                        'did you mean {}?'.format(similar_path) if similar_path else
                        'train first, or give the --model_dir of a run with a checkpoint')
      path, readable_path = found.path, found.readable_path
    elif flag_value == 'best':
      best = pin_current_checkpoint(
          lambda: getattr(best_checkpoint.read_best(run_dir.path), 'path', None), stack)
      if best is None:
        raise UserError('there is no best checkpoint',
                        '--checkpoint=best --model_dir=' + run_dir.path,
                        'train with --mode=train_and_evaluate, or give '
                        + _describe_checkpoints(run_dir.path))
      path, readable_path = best
    else:
      path = re.sub(r'\.(index|meta|data-\d+-of-\d+)$', '', flag_value)
      try:
        readable_path = stack.enter_context(pin_files(path))
      except OSError as error:
        folder = flag_value if os.path.isdir(flag_value) else os.path.dirname(flag_value)
        raise UserError('there is no such checkpoint', '--checkpoint=' + flag_value,
                        'give {}, or {}'.format(
                            ' or '.join(NAMED_CHECKPOINTS),
                            _describe_checkpoints(folder or run_dir.path))) from error
    try:
      step = _read_global_step(readable_path)
    except (tf.errors.OpError, ValueError) as error:
      raise UserError('the checkpoint is damaged, or was not saved by a training run',
                      '{} ({})'.format(path, str(error).replace(readable_path, path)),
                      'give another checkpoint') from error
    yield ReadableCheckpoint(path, step, readable_path)


def find_run_dir_of_requested_checkpoint(settings: Settings, run_dir: RunDir) -> RunDir:
  """Returns the folder of the run whose checkpoint `--checkpoint` names."""
  flag_value = settings.checkpoints.checkpoint
  if flag_value in NAMED_CHECKPOINTS:
    return run_dir
  folder = os.path.dirname(flag_value)
  parent = os.path.dirname(folder)
  # The best checkpoint is in RUN/best/STEP.
  return RunDir(os.path.dirname(parent) or '.' if (
      os.path.basename(parent) == best_checkpoint.BEST_FOLDER) else folder)


def list_steps_in_checkpoint_file(model_dir: str) -> List[int]:
  """Returns the steps listed in TensorFlow's `checkpoint` file, the latest one first."""
  matches = [_LISTED_NAME.match(os.path.basename(path)) for path in read_checkpoint_list(model_dir)]
  return [int(match.group(1)) for match in matches if match]


def list_steps_on_disk(model_dir: str) -> List[int]:
  """Returns the steps of which at least one checkpoint file exists, the latest one first."""
  if not os.path.isdir(model_dir):
    return []
  matches = map(CHECKPOINT_FILE_PATTERN.match, os.listdir(model_dir))
  return sorted({int(match.group(1)) for match in matches if match}, reverse=True)


def checkpoint_path(model_dir: str, step: int) -> str:
  return os.path.join(model_dir, 'model.ckpt-{}'.format(step))


def _describe_checkpoints(folder: str) -> str:
  """Lists the checkpoints in a folder, for the remedy of an error."""
  paths = [path[:-len('.index')] for path in
           glob.glob(os.path.join(glob.escape(folder), 'model.ckpt-*.index'))]
  if not paths:
    return 'a checkpoint in another folder: there is none in ' + folder
  return 'one of ' + ', '.join(sorted(paths, key=lambda path: (len(path), path)))
