"""The latest checkpoint of a folder that loads, whatever a killed run or its disk left there."""

import contextlib
import glob
import logging
import os
import re
import shutil
from typing import List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.tf_patches import saver as saver_patches

_LOG = logging.getLogger('estimator_train')
_NAME = re.compile(r'model\.ckpt-(\d+)\.(index|data-\d+-of-\d+)$')
# What TensorFlow, and files.atomic, write before they rename it; and the folders that have such.
_ASIDE = re.compile(r'model\.ckpt-\d+_temp_\w+$|.+\.tmp[0-9a-f]{32}$|.+\.(\d+|h5)\.part$')
_FOLDERS = ('', 'keras', 'best', 'report')


class Found(NamedTuple):
  """The checkpoint to go on from.

  Attributes:
    path: of the latest that loads; None: there is none, and never was.
    step: its global step; 0 without one.
    passed_over: why later ones do not load, one text each.
  """
  path: Optional[str]
  step: int
  passed_over: List[str]


def find(model_dir: str) -> Found:
  """Finds the latest checkpoint whose every value can be read and is as it was written.

  That is the one that TensorFlow's `checkpoint` file names, which is written last of all, or else
  the newest there is. Reads all of it, as only that tells; each value has a checksum. Changes
  nothing.

  Raises:
    UserError: there are checkpoints, and none of them loads.
  """
  named = _named(model_dir)
  passed_over = []
  is_lost = False
  for step in named[:1] + [step for step in _on_disk(model_dir) if step not in named[:1]]:
    path = _path(model_dir, step)
    try:
      saved_step = _read_all(path)
    except (tf.errors.OpError, OSError, ValueError) as error:
      passed_over.append('{}: {}'.format(path, _in_a_line(error)))
      # A run that was killed as it saved its first one has lost nothing.
      is_lost = is_lost or step in named or step > 0
      continue
    return Found(path, step if saved_step is None else saved_step, passed_over)
  if is_lost:
    raise UserError('no checkpoint in --model_dir can be loaded', '; '.join(passed_over),
                    'bring back a copy of one, or give another --model_dir to begin anew; '
                    'nothing was deleted')
  return Found(None, 0, passed_over)


def tell(found: Found) -> None:
  """Logs which checkpoints were passed over."""
  for text in found.passed_over:
    _LOG.warning('a checkpoint cannot be loaded and is passed over: %s', text)


def mend(model_dir: str, found: Found) -> None:
  """Has TensorFlow go on from what was found, and clears away what was never finished.

  Checkpoints that do not load stay where they are until the run saves that step again; but for
  what is left of one that TensorFlow was deleting, which it would never come back to.

  Args:
    model_dir: of a run that nobody else writes into.
    found: what `find` returned for it.
  """
  tell(found)
  clear_unfinished(model_dir)
  if found.path is None:
    return
  named, number = _named(model_dir), _number(found.path)
  unnamed = [step for step in _on_disk(model_dir) if step < number and step not in named]
  for step in unnamed:
    if not os.path.exists(_path(model_dir, step) + '.index'):
      for path in glob.glob(glob.escape(_path(model_dir, step)) + '.*'):
        os.remove(path)
  if named[:1] != [number] or unnamed:
    # Those that it knows of are those that it deletes in time.
    older = [_path(model_dir, step) for step in reversed(_on_disk(model_dir)) if step <= number]
    saver_patches.write_checkpoint_state(model_dir, found.path, older)


def clear_unfinished(model_dir: str) -> None:
  """Removes what was never renamed, of a folder that nobody else writes into."""
  for folder in _FOLDERS:
    _clear_aside(os.path.join(model_dir, folder))


def _clear_aside(folder: str) -> None:
  with contextlib.suppress(OSError):
    for name in os.listdir(folder):
      path = os.path.join(folder, name)
      if not _ASIDE.match(name):
        continue
      if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
      else:
        os.remove(path)


def _named(model_dir: str) -> List[int]:
  """Returns the steps that TensorFlow's file names, the one it would take first."""
  try:
    state = tf.train.get_checkpoint_state(model_dir)
  except ValueError:  # It is empty.
    state = None
  if state is None:
    return []
  paths = [state.model_checkpoint_path] + list(state.all_model_checkpoint_paths)
  return [int(match.group(1)) for match in map(re.compile(r'.*-(\d+)$').match, paths) if match]


def _on_disk(model_dir: str) -> List[int]:
  """Returns the steps of which there is some file of a checkpoint, the newest first."""
  if not os.path.isdir(model_dir):
    return []
  matches = map(_NAME.match, os.listdir(model_dir))
  return sorted({int(match.group(1)) for match in matches if match}, reverse=True)


def _number(path: str) -> int:
  return int(path.rpartition('-')[2])


def _path(model_dir: str, step: int) -> str:
  return os.path.join(model_dir, 'model.ckpt-{}'.format(step))


def _read_all(path: str) -> Optional[int]:
  """Returns the global step, which other workers may have raised since the file got its name."""
  reader = tf.train.NewCheckpointReader(path)
  for name in reader.get_variable_to_shape_map():
    reader.get_tensor(name)
  return (int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
          if reader.has_tensor(tf.GraphKeys.GLOBAL_STEP) else None)


def _in_a_line(error: Exception) -> str:
  return ' '.join(str(getattr(error, 'message', error)).split())
