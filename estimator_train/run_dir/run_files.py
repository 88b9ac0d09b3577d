"""The folder of a run, and what it records there beside the checkpoints."""

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
  """Makes a folder where it is missing, and finds out whether it can be written to.

  Args:
    path: of the folder.
    flag: that names it.

  Raises:
    UserError: when it cannot.
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

      flags.txt          the flags of the last training, a flagfile
      labels.txt         the class names, one a line
      batch_sizes.json   [[first global step, examples per step], ...]
      checkpoint         TensorFlow's list of checkpoints, written last of all
      model.ckpt-STEP.*  the checkpoints
      keras/             the initial weights
      best/              the best checkpoint
      eval/, events.*    TensorBoard's data
      report/, *.json    the reports
      run.lock           held by the process that writes

  Args:
    path: of the folder; it need not be there.
  """

  def __init__(self, path: Optional[str]) -> None:
    if path is None:
      raise ValueError('this mode needs a model_dir')
    self.path = path

  def file(self, *names: str) -> str:
    """Returns the path of a file in the folder."""
    return os.path.join(self.path, *names)

  def make(self) -> None:
    """Makes the folder where it is missing; raises a UserError when it cannot be written to."""
    make_folder(self.path)

  def flags(self) -> Dict[str, str]:
    """Returns the flags of the last training in the folder, by name; none when it is new."""
    return _flags_by_name(self._read(FLAGS_FILE))

  def check_flags(self, settings: settings_lib.Settings, free: Sequence[str]) -> None:
    """Raises a UserError when the folder was made with other flags than these, but for some."""
    different = self.differences(settings, [name for name, _ in settings.items()
                                            if name not in free])
    if different:
      raise UserError('--model_dir was made with other flags', different[0],
                      'give another --model_dir, or the flags of ' + self.file(FLAGS_FILE))

  def differences(self, settings: settings_lib.Settings, names: Sequence[str]) -> List[str]:
    """Returns which of these flags differ from those of the last training, and how."""
    recorded, here = self.flags(), _flags_by_name(settings_lib.to_flagfile(settings))
    return ['{} there and {} here'.format(*(
        'no --' + name if flags.get(name) is None else '--{}={}'.format(name, flags[name])
        for flags in (recorded, here)))
            for name in names if recorded and recorded.get(name) != here.get(name)]

  def labels(self) -> Tuple[str, ...]:
    """Returns the class names that the folder was trained with; none when it is new."""
    return tuple(self._read(LABELS_FILE).split('\n')[:-1])

  def check_labels(self, labels: Sequence[str], flag: str = 'model_dir') -> None:
    """Raises a UserError when the folder was trained with other classes, or in another order."""
    recorded = self.labels()
    if recorded and recorded != tuple(labels):
      raise UserError('--{} was trained with other labels'.format(flag), '{} there and {} here'
                      .format(','.join(recorded), ','.join(labels)),
                      'give another --{}; of an image folder, or --labels in that order'
                      .format(flag))

  def record(self, settings: settings_lib.Settings, labels: Sequence[str]) -> None:
    """Writes flags.txt and labels.txt."""
    self.record_flags(settings)
    atomic.write_text(self.file(LABELS_FILE), '\n'.join(labels) + '\n')

  def record_flags(self, settings: settings_lib.Settings) -> None:
    """Writes flags.txt."""
    atomic.write_text(self.file(FLAGS_FILE), settings_lib.to_flagfile(settings))

  def record_batch_size(self, first_step: int, examples_per_step: int) -> None:
    """Records how many examples each step takes from this one on.

    Written before the first of these steps, it is right for every checkpoint that there can be.
    """
    before = [(step, examples) for step, examples in self._batch_sizes() if step < first_step]
    if not before or before[-1][1] != examples_per_step:
      before.append((first_step, examples_per_step))
    atomic.write_text(self.file(_BATCH_SIZES_FILE), json.dumps(before) + '\n')

  def examples_seen(self, global_step: int, examples_per_step: int) -> int:
    """Returns the examples that the steps up to this one took, over all runs of the folder.

    Args:
      global_step: of a checkpoint in the folder.
      examples_per_step: for a folder that has no record of it.
    """
    sizes = [(0, examples_per_step)] + self._batch_sizes()
    ends = [step for step, _ in sizes[1:]] + [global_step]
    return sum(max(min(end, global_step) - begin, 0) * examples
               for (begin, examples), end in zip(sizes, ends))

  def saved_at(self) -> Optional[int]:
    """Returns when TensorFlow last listed a checkpoint, in ns; None: there is none."""
    try:
      return os.stat(self.file(_CHECKPOINTS_FILE)).st_mtime_ns
    except OSError:
      return None

  def last_checkpoint(self) -> Optional[str]:
    """Returns the path of the checkpoint that TensorFlow listed last; None: there is none.

    That is the last good one: it is listed when all of it is written. TensorFlow is not asked, as
    this is for when files cannot be read, too.
    """
    try:
      with open(self.file(_CHECKPOINTS_FILE), encoding='utf-8') as file:
        found = re.match(r'model_checkpoint_path: "(model\.ckpt-\d+)"', file.read())
    except (OSError, UnicodeError):
      return None
    return self.file(found.group(1)) if found else None

  def _read(self, name: str) -> str:
    """Returns a text file of the folder; an empty one where it is missing."""
    try:
      with open(self.file(name), encoding='utf-8') as file:
        return file.read()
    except OSError:
      return ''
    except UnicodeError as error:
      raise UserError('a file of --model_dir is damaged, it is no text in UTF-8', self.file(name),
                      'give another --model_dir, or remove the file') from error

  def _batch_sizes(self) -> List[Tuple[int, int]]:
    """Returns (the first global step, examples per step) of each batch size, in their order."""
    try:
      with open(self.file(_BATCH_SIZES_FILE), encoding='utf-8') as file:
        return [(int(step), int(examples)) for step, examples in json.load(file)]
    except (OSError, ValueError, TypeError):
      return []


def _flags_by_name(flagfile: str) -> Dict[str, str]:
  pairs = (line[2:].partition('=') for line in flagfile.splitlines() if line.startswith('--'))
  return {name: value for name, _, value in pairs}
