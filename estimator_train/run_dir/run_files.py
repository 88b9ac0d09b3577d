"""The folder of a run: what it records there beside the checkpoints."""

import json
import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.files import atomic

FLAGS_FILE = 'flags.txt'
LABELS_FILE = 'labels.txt'
_BATCH_SIZES_FILE = 'batch_sizes.json'
_CHECKPOINTS_FILE = 'checkpoint'  # TensorFlow's.


def make(model_dir: str, flag: str = 'model_dir') -> None:
  """Makes the folder where it is missing, and finds out whether it can be written to.

  Args:
    model_dir: the path.
    flag: that names it.

  Raises:
    UserError: when it cannot.
  """
  try:
    os.makedirs(model_dir, exist_ok=True)
    if not os.access(model_dir, os.W_OK | os.X_OK):
      raise PermissionError('no permission to write')
  except OSError as error:
    raise UserError('--{} cannot be written to'.format(flag),
                    '{} ({})'.format(model_dir, error.strerror or error),
                    'give a folder that this user can write to') from error


def read_flags(model_dir: str) -> Dict[str, str]:
  """Returns the flags that the folder was last trained with, by name; none when it is new."""
  try:
    with open(os.path.join(model_dir, FLAGS_FILE), encoding='utf-8') as file:
      return _by_name(file.read())
  except OSError:
    return {}
  except UnicodeError as error:
    raise _damaged(model_dir, FLAGS_FILE) from error


def _damaged(model_dir: str, name: str) -> UserError:
  return UserError('a file of --model_dir is damaged, it is no text in UTF-8',
                   os.path.join(model_dir, name), 'give another --model_dir, or remove the file')


def check_flags(settings: settings_lib.Settings, free: Sequence[str]) -> None:
  """Raises a UserError when the folder was made with other flags than these, but for some."""
  assert settings.model_dir is not None
  different = differences(settings, [name for name, _ in settings.items() if name not in free])
  if different:
    raise UserError('--model_dir was made with other flags', different[0],
                    'give another --model_dir, or the flags of {}'.format(
                        os.path.join(settings.model_dir, FLAGS_FILE)))


def differences(settings: settings_lib.Settings, names: Sequence[str]) -> List[str]:
  """Returns which of these flags are others than the folder was last trained with, and how."""
  assert settings.model_dir is not None
  recorded = read_flags(settings.model_dir)
  here = _by_name(settings_lib.to_flagfile(settings))
  return ['{} there and {} here'.format(*(
      'no --' + name if flags.get(name) is None else '--{}={}'.format(name, flags[name])
      for flags in (recorded, here)))
          for name in names if recorded and recorded.get(name) != here.get(name)]


def _by_name(flagfile: str) -> Dict[str, str]:
  pairs = (line[2:].partition('=') for line in flagfile.splitlines() if line.startswith('--'))
  return {name: value for name, _, value in pairs}


def saved_at(model_dir: Optional[str]) -> Optional[int]:
  """Returns when TensorFlow last noted a checkpoint in the folder, in ns; None: there is none."""
  try:
    return os.stat(os.path.join(model_dir or '', _CHECKPOINTS_FILE)).st_mtime_ns
  except OSError:
    return None


def last_checkpoint(model_dir: str) -> Optional[str]:
  """Returns the path of the checkpoint that TensorFlow noted last; None: there is none.

  That is the last good one: it is noted when all of it is written. TensorFlow is not asked, as
  this is for when files cannot be read, too.
  """
  try:
    with open(os.path.join(model_dir, _CHECKPOINTS_FILE), encoding='utf-8') as file:
      found = re.match(r'model_checkpoint_path: "(model\.ckpt-\d+)"', file.read())
  except (OSError, UnicodeError):
    return None
  return os.path.join(model_dir, found.group(1)) if found else None


def read_labels(model_dir: str) -> Tuple[str, ...]:
  """Returns the class names that the folder was trained with; none when it is new."""
  try:
    with open(os.path.join(model_dir, LABELS_FILE), encoding='utf-8') as file:
      return tuple(file.read().split('\n')[:-1])
  except OSError:
    return ()
  except UnicodeError as error:
    raise _damaged(model_dir, LABELS_FILE) from error


def check_labels(model_dir: str, labels: Sequence[str], flag: str = 'model_dir') -> None:
  """Raises a UserError when the folder was trained with other classes, or in another order."""
  recorded = read_labels(model_dir)
  if recorded and recorded != tuple(labels):
    raise UserError('--{} was trained with other labels'.format(flag),
                    '{} there and {} here'.format(','.join(recorded), ','.join(labels)),
                    'give another --{}; of an image folder, or --labels in that order'.format(flag))


def record(settings: settings_lib.Settings, labels: Sequence[str]) -> None:
  """Writes flags.txt and labels.txt."""
  assert settings.model_dir is not None
  record_flags(settings)
  atomic.write_text(os.path.join(settings.model_dir, LABELS_FILE), '\n'.join(labels) + '\n')


def record_flags(settings: settings_lib.Settings) -> None:
  """Writes flags.txt."""
  assert settings.model_dir is not None
  atomic.write_text(os.path.join(settings.model_dir, FLAGS_FILE),
                    settings_lib.to_flagfile(settings))


def record_batch_size(model_dir: str, first_step: int, examples_a_step: int) -> None:
  """Notes how many examples each step takes from this one on.

  Written before the first of these steps, it is right for every checkpoint that there can be.
  """
  before = [(step, examples) for step, examples in _batch_sizes(model_dir) if step < first_step]
  if not before or before[-1][1] != examples_a_step:
    before.append((first_step, examples_a_step))
  atomic.write_text(os.path.join(model_dir, _BATCH_SIZES_FILE), json.dumps(before) + '\n')


def examples_seen(model_dir: str, global_step: int, examples_a_step: int) -> int:
  """Returns the examples that the steps up to this one took, over all runs of the folder.

  Args:
    model_dir: of the run.
    global_step: of a checkpoint of it.
    examples_a_step: for a folder that does not say so.
  """
  sizes = [(0, examples_a_step)] + _batch_sizes(model_dir)
  ends = [step for step, _ in sizes[1:]] + [global_step]
  return sum(max(min(end, global_step) - begin, 0) * examples
             for (begin, examples), end in zip(sizes, ends))


def _batch_sizes(model_dir: str) -> List[Tuple[int, int]]:
  """Returns (the first global step, examples a step) of each batch size, in their order."""
  try:
    with open(os.path.join(model_dir, _BATCH_SIZES_FILE), encoding='utf-8') as file:
      return [(int(step), int(examples)) for step, examples in json.load(file)]
  except (OSError, ValueError, TypeError):
    return []
