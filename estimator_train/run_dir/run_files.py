"""The folder of a run, and the files that record its flags, class names and batch sizes."""

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


def make_folder(path: str, flag: str = 'model_dir') -> None:
  """Makes a folder if it is missing, and checks that it is writable.

  Args:
    path: path of the folder.
    flag: the flag that names the folder, for errors.

  Raises:
    UserError: the folder cannot be made, or is not writable.
  """
  try:
    os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
      raise PermissionError('no permission to write')
  except OSError as error:
    raise UserError('--{} cannot be written to'.format(flag),
                    '{} ({})'.format(path, error.strerror or error),
                    'give a folder that this user can write to') from error


class RunDir:
  """The `--model_dir` of a run.

      flags.txt          the flags of the last training, as a flagfile
      labels.txt         the class names, one per line
      batch_sizes.json   [[first global step, examples per step], ...]
      checkpoint         TensorFlow's list of checkpoints, updated after the checkpoint itself
      model.ckpt-STEP.*  the checkpoints
      keras/             the initial weights
      best/              the best checkpoint
      eval/, events.*    TensorBoard's data
      report/, *.json    the reports
      run.lock           locked by the process that writes

  Args:
    path: path of the folder, which need not exist.
  """

  def __init__(self, path: Optional[str]) -> None:
    if path is None:
      raise ValueError('this mode needs a model_dir')
    self.path = path

  def file(self, *names: str) -> str:
    """Returns the path of a file in the folder."""
    return os.path.join(self.path, *names)

  def make(self) -> None:
    """Makes the folder if it is missing; raises a UserError if it is not writable."""
    make_folder(self.path)

  def flags(self) -> Dict[str, str]:
    """Returns the flags of the last training in the folder, by name; empty if it is new."""
    return _flags_by_name(self._read_text(FLAGS_FILE))

  def check_flags(self, settings: settings_lib.Settings, free: Sequence[str]) -> None:
    """Raises a UserError if the folder was created with other flags.

    Args:
      settings: the flags of this run.
      free: names of flags that may differ.
    """
    different = self.flag_differences(settings, [name for name, _ in settings.items()
                                                 if name not in free])
    if different:
      raise UserError('--model_dir was created with other flags', different[0],
                      'give another --model_dir, or the flags of ' + self.file(FLAGS_FILE))

  def flag_differences(self, settings: settings_lib.Settings, names: Sequence[str]) -> List[str]:
    """Returns descriptions of the differences between these flags and those of the last training.

    Args:
      settings: the flags of this run.
      names: names of the flags to compare.
    """
    recorded, here = self.flags(), _flags_by_name(settings_lib.to_flagfile(settings))
    return ['{} there and {} here'.format(*(
        'no --' + name if flags.get(name) is None else '--{}={}'.format(name, flags[name])
        for flags in (recorded, here)))
            for name in names if recorded and recorded.get(name) != here.get(name)]

  def labels(self) -> Tuple[str, ...]:
    """Returns the class names of the last training in the folder; empty if it is new."""
    return tuple(self._read_text(LABELS_FILE).split('\n')[:-1])

  def check_labels(self, labels: Sequence[str], flag: str = 'model_dir') -> None:
    """Raises a UserError if the folder was trained with other class names, or in another order."""
    recorded = self.labels()
    if recorded and recorded != tuple(labels):
      raise UserError('--{} was trained with other class names'.format(flag),
                      '{} there and {} here'.format(','.join(recorded), ','.join(labels)),
                      'give another --{} or, for an image folder, --labels in that order'
                      .format(flag))

  def record_flags_and_labels(self, settings: settings_lib.Settings,
                              labels: Sequence[str]) -> None:
    """Writes flags.txt and labels.txt."""
    self.record_flags(settings)
    atomic.write_text(self.file(LABELS_FILE), '\n'.join(labels) + '\n')

  def record_flags(self, settings: settings_lib.Settings) -> None:
    """Writes flags.txt."""
    atomic.write_text(self.file(FLAGS_FILE), settings_lib.to_flagfile(settings))

  def record_batch_size(self, first_step: int, examples_per_step: int) -> None:
    """Records the number of examples per step, from a global step on.

    Call this before the first of these steps, so that the record is valid for every checkpoint.
    """
    sizes = [(step, examples) for step, examples in self._batch_sizes() if step < first_step]
    if not sizes or sizes[-1][1] != examples_per_step:
      sizes.append((first_step, examples_per_step))
    atomic.write_text(self.file(_BATCH_SIZES_FILE), json.dumps(sizes) + '\n')

  def examples_seen(self, global_step: int, examples_per_step: int) -> int:
    """Returns the number of examples in all steps up to a global step, over all runs of the folder.

    Args:
      global_step: the global step of a checkpoint in the folder.
      examples_per_step: number of examples per step, for a folder without a record of it.
    """
    sizes = [(0, examples_per_step)] + self._batch_sizes()
    ends = [step for step, _ in sizes[1:]] + [global_step]
    return sum(max(min(end, global_step) - begin, 0) * examples
               for (begin, examples), end in zip(sizes, ends))

  def last_save_ns(self) -> Optional[int]:
    """Returns the time in ns when TensorFlow last listed a checkpoint; None if it never did."""
    try:
      return os.stat(self.file(_CHECKPOINTS_FILE)).st_mtime_ns
    except OSError:
      return None

  def last_checkpoint(self) -> Optional[str]:
    """Returns the path of the checkpoint that TensorFlow listed last; None without one.

    It is complete, since it is listed after all of its files are written. The list is read without
    TensorFlow, whose functions raise errors when files cannot be read.
    """
    try:
      with open(self.file(_CHECKPOINTS_FILE), encoding='utf-8') as file:
        found = re.match(r'model_checkpoint_path: "(model\.ckpt-\d+)"', file.read())
    except (OSError, UnicodeError):
      return None
    return self.file(found.group(1)) if found else None

  def _read_text(self, name: str) -> str:
    """Returns the content of a text file in the folder; empty if the file is missing."""
    try:
      with open(self.file(name), encoding='utf-8') as file:
        return file.read()
    except OSError:
      return ''
    except UnicodeError as error:
      raise UserError('a file in --model_dir is not UTF-8 text', self.file(name),
                      'give another --model_dir, or remove the file') from error

  def _batch_sizes(self) -> List[Tuple[int, int]]:
    """Returns (first global step, examples per step) for each batch size, ordered by step."""
    try:
      with open(self.file(_BATCH_SIZES_FILE), encoding='utf-8') as file:
        return [(int(step), int(examples)) for step, examples in json.load(file)]
    except (OSError, ValueError, TypeError):
      return []


def _flags_by_name(flagfile: str) -> Dict[str, str]:
  pairs = (line[2:].partition('=') for line in flagfile.splitlines() if line.startswith('--'))
  return {name: value for name, _, value in pairs}
