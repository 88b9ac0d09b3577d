"""Reads and writes the folder of a run. lock.py locks the folder."""

import json
import logging
import os
import re
import shutil
from typing import BinaryIO, Dict, List, Optional, Sequence, Tuple

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError, printable
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import FLAGS_FILE as FLAGS_FILE, user_code
from estimator_train.system import json_values, storage

_LOG = logging.getLogger('estimator_train')
LABELS_FILE = 'labels.txt'
_BATCH_SIZES_FILE = 'batch_sizes.json'
_BATCH_SIZES_SCHEMA = json_values.list_of(json_values.tuple_of(json_values.integer(),
                                                        json_values.integer(1)))
CHECKPOINTS_FILE = 'checkpoint'  # Written by TensorFlow.
INITIAL_CHECKPOINT = 'model.ckpt-0'
# What a run has written before its first step; the last group remains when the run is discarded.
_FILES_BEFORE_FIRST_STEP = re.compile(
    r'(?:model\.ckpt-0[._].*|checkpoint|graph\.pbtxt|events\.out\.tfevents\..*|keras|labels\.txt|'
    r'data\.json|batch_sizes\.json|flags\.txt)|(run\.lock|skipped_images\.json|decompressed|logs)')
_LISTED_PATH_PATTERN = re.compile(r'^\s*(all_)?model_checkpoint_paths?:\s*"((?:[^"\\\n]|\\.)*)"',
                                  re.MULTILINE)


def make_folder(path: str, flag_name: str = 'model_dir') -> None:
  """Makes a folder if it is missing; raises a UserError if it is not writable.

  Args:
    flag_name: the name of the flag that gives the path, for the error.
  """
  try:
    os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
      raise PermissionError('no permission to write')
  except OSError as error:
    raise UserError('--{} cannot be written to'.format(flag_name),
                    '{} ({})'.format(path, error.strerror or error),
                    'give a folder that this user can write to') from error


def find_origin(settings: settings_lib.Settings) -> str:
  """Returns where the functions of the user are defined; see `user_code.describe_origin`."""
  return printable(user_code.describe_origin((settings.data.dataset, settings.model.model)))


def read_checkpoint_list(folder: str) -> List[str]:
  """Returns the paths of the checkpoints in TensorFlow's list, the file `checkpoint` of a folder.

  Only the names in the listed paths are used, because the folder may have been moved.

  Returns:
    The latest checkpoint, then all others from the oldest to the newest, without duplicates. The
    files need not exist. The result is empty if the list is missing or damaged.

  Raises:
    UserError: the list is not a regular file, or cannot be read.
  """
  names = [re.split(r'[/\\]', path)[-1] for path in _read_listed_paths(folder)]
  return [os.path.join(folder, name) for name in dict.fromkeys(names)
          if name not in ('', os.curdir, os.pardir)]


def checkpoint_list_has_paths(folder: str) -> bool:
  """Returns whether TensorFlow's list of checkpoints has paths that are not just file names."""
  return any(re.search(r'[/\\]|^\.*$', path) for path in _read_listed_paths(folder))


def _read_listed_paths(folder: str) -> List[str]:
  """Returns the paths in TensorFlow's list of checkpoints, the latest first."""
  def unescape(text: str) -> str:
    return re.sub(rb'\\([0-7]{3}|.)', lambda match: (
        bytes([int(match.group(1), 8)]) if len(match.group(1)) == 3 else match.group(1)),
                  text.encode('utf-8')).decode('utf-8', 'surrogateescape')

  path = os.path.join(folder, CHECKPOINTS_FILE)
  try:
    with storage.open_regular_file(path) as file:
      text = file.read().decode('utf-8', 'replace')
  except FileNotFoundError:
    return []
  except OSError as error:
    raise UserError("TensorFlow's list of checkpoints cannot be read", '{} ({})'.format(
        path, error.strerror), 'remove it, so that the newest checkpoint is used') from error
  # The keys of all paths except the latest begin with `all_`. In the file, quotes and bytes that
  # are not ASCII are escaped.
  return [unescape(path) for _, path in sorted(
      _LISTED_PATH_PATTERN.findall(text), key=lambda match: bool(match[0]))]


class RunDir:
  """The `--model_dir` of a run, which need not exist.

      flags.txt          the flags of the last training run, as a flagfile
      labels.txt         the class names, one per line
      data.json          which examples the run trains and evaluates on, see data_record.py
      batch_sizes.json   [[first global step, examples per step], ...]
      checkpoint         TensorFlow's list of checkpoints, updated after each save
      model.ckpt-STEP.*  the checkpoints
      keras/             the initial weights
      best/              the best checkpoint
      best.h5, model.h5  the Keras models of the best and of the last checkpoint
      eval/, events.*    TensorBoard's data
      report/, *.json    the reports
      evaluations/       the reports of evaluations of other examples, or of other checkpoints
      rank_0_address.json  where rank 0 of Horovod listens, until all ranks have connected
      run.lock           locked by the process that writes to the folder
  """

  def __init__(self, path: Optional[str]) -> None:
    if path is None:
      raise ValueError('this mode needs a model_dir')
    self.path = path

  def path_to(self, *names: str) -> str:
    return os.path.join(self.path, *names)

  def make(self) -> None:
    """Makes the folder if it is missing; raises a UserError if it is not writable."""
    make_folder(self.path)

  def read_flags(self) -> Dict[str, str]:
    """Returns the flags of the last training run, by name; empty for a new folder."""
    return {name: value for name, value in self._read_flag_texts().items() if value is not None}

  def check_flags(self, settings: settings_lib.Settings, changeable_flags: Sequence[str]) -> None:
    """Raises a UserError if the last training run had other values of flags that cannot change."""
    differences = self.flag_differences(settings, [
        name for name, _ in settings.items() if name not in changeable_flags])
    if differences:
      raise UserError('--model_dir was created with other flags', differences[0],
                      'give another --model_dir, or the flags of ' + self.path_to(FLAGS_FILE))

  def flag_differences(self, settings: settings_lib.Settings, names: Sequence[str]) -> List[str]:
    """Returns a text for each of these flags that had another value in the last training run."""
    current_flags, recorded_flags = settings_lib.to_texts(settings), self._read_flag_texts()
    if recorded_flags:  # A flag that is newer than this run had its default in the run.
      recorded_flags = {**settings_lib.to_texts(settings_lib.Settings()), **recorded_flags}
    return ['{} before and {} now'.format(*(
        'no --' + name if flags.get(name) is None else '--{}={}'.format(name, flags[name])
        for flags in (recorded_flags, current_flags)))
            for name in names
            if recorded_flags and recorded_flags.get(name) != current_flags.get(name)]

  def read_origin(self) -> str:
    """Returns the `find_origin` of the last training run."""
    match = re.search(r'^# functions of (.+)$', self._read_text(FLAGS_FILE), re.MULTILINE)
    return match.group(1) if match else ''

  def read_class_names(self) -> Tuple[str, ...]:
    """Returns the class names of the last training run; empty for a new folder."""
    return tuple(self._read_text(LABELS_FILE).split('\n')[:-1])

  def check_class_names(self, class_names: Sequence[str], flag_name: str = 'model_dir') -> None:
    """Raises a UserError if the last training run had other class names, or another order of them.

    Args:
      flag_name: the name of the flag that gives this folder, for the error.
    """
    recorded_names = self.read_class_names()
    if recorded_names and recorded_names != tuple(class_names):
      raise UserError('the model of --{} was trained with other class names'.format(flag_name),
                      '{} before and {} now'.format(','.join(recorded_names),
                                                    ','.join(class_names)),
                      'give --flagfile={} for the flags of that run, or another --{}'.format(
                          self.path_to(FLAGS_FILE), flag_name))

  def record_flags(self, settings: settings_lib.Settings) -> None:
    """Writes flags.txt."""
    origin = find_origin(settings)
    storage.write_text(self.path_to(FLAGS_FILE), settings_lib.to_flagfile(settings) + (
        '# functions of {}\n'.format(origin) if origin else ''))

  def record_class_names(self, class_names: Sequence[str]) -> None:
    """Writes labels.txt, if there are classes."""
    if class_names:
      storage.write_text(self.path_to(LABELS_FILE), '\n'.join(class_names) + '\n')

  def has_only_initial_state(self) -> bool:
    """Returns whether the folder has nothing but what a run writes before its first step."""
    latest = self.last_checkpoint() or INITIAL_CHECKPOINT
    return os.path.basename(latest) == INITIAL_CHECKPOINT and all(
        map(_FILES_BEFORE_FIRST_STEP.fullmatch, os.listdir(self.path)))

  def discard_initial_state(self) -> None:
    """Removes what a run has written before its first step, except caches and logs.

    The folder must be locked. flags.txt is removed last, so that a process that is killed meanwhile
    leaves a folder of the same kind.
    """
    for name in sorted(os.listdir(self.path), key=FLAGS_FILE.__eq__):
      match, path = _FILES_BEFORE_FIRST_STEP.fullmatch(name), self.path_to(name)
      if match is None or match.group(1):
        continue
      if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
      else:
        os.remove(path)

  def read_clock(self, default_examples_per_step: int) -> StepClock:
    """Returns the clock of the steps of all runs in the folder.

    Args:
      default_examples_per_step: the number of examples of steps without a record.
    """
    batch_sizes = self._read_batch_sizes()
    if not batch_sizes or batch_sizes[0][0]:
      batch_sizes.insert(0, (0, default_examples_per_step))
    return StepClock(tuple(batch_sizes))

  def record_clock(self, clock: StepClock) -> None:
    """Writes batch_sizes.json. Must be called before the first step with a new batch size."""
    storage.write_text(self.path_to(_BATCH_SIZES_FILE), json.dumps(clock.batch_sizes) + '\n')

  def warn_of_missing_run_files(self, global_step: int, has_classes: bool) -> None:
    """Warns if there is a checkpoint, but files that are written before it are missing.

    Args:
      global_step: the step of the checkpoint; 0 if there is none.
    """
    names = (FLAGS_FILE, _BATCH_SIZES_FILE) + ((LABELS_FILE,) if has_classes else ())
    missing = [name for name in names if not os.path.lexists(self.path_to(name))]
    if missing and global_step:
      _LOG.warning('%s lacks %s of its checkpoint of step %d: other flags, class names or batch '
                   'sizes than those of this run are not noticed', self.path, ', '.join(missing),
                   global_step)

  def last_save_time_ns(self) -> Optional[int]:
    """Returns when TensorFlow last wrote its list of checkpoints, in ns; None if it never did."""
    try:
      return os.stat(self.path_to(CHECKPOINTS_FILE)).st_mtime_ns
    except OSError:
      return None

  def last_checkpoint(self) -> Optional[str]:
    """Returns the path of the last checkpoint in TensorFlow's list; None if there is none.

    The checkpoint is complete, because TensorFlow writes its files before its path in the list.
    """
    try:
      return next(iter(read_checkpoint_list(self.path)), None)
    except UserError:
      return None

  def _read_flag_texts(self) -> Dict[str, Optional[str]]:
    """Returns the recorded flags by name; None for a flag that is recorded as not set."""
    return settings_lib.parse_flagfile(self._read_text(FLAGS_FILE))

  def _read_text(self, name: str) -> str:
    """Returns the text of a file, or '' if it is missing; raises a UserError if it is damaged."""
    try:
      return storage.load(self.path_to(name), storage.parse_text) or ''
    except storage.DamagedFile as damage:
      raise UserError('a file in --model_dir is damaged', '{} ({})'.format(
          self.path_to(name), damage.reason),
                      'give another --model_dir, or remove the file') from damage

  def _read_batch_sizes(self) -> List[Tuple[int, int]]:
    """Returns the recorded pairs of StepClock.batch_sizes; empty if there are none."""
    def parse(file: BinaryIO) -> List[Tuple[int, int]]:
      batch_sizes = [(step, size) for step, size in storage.parse_json(file, _BATCH_SIZES_SCHEMA)]
      steps = [step for step, _ in batch_sizes]
      if not batch_sizes or steps != sorted(set(steps)):
        raise ValueError('no increasing steps with numbers of examples')
      return batch_sizes

    return storage.load_or_warn(self.path_to(_BATCH_SIZES_FILE), parse,
                                'assuming that the batch size has not changed') or []
