"""A training that is started and killed, and what it left beside what another one left."""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH_SIZE = 32
_DEADLINE_SECS = 300
HALVES = re.compile(r'\.part$|_temp_|^temp-|\.tmp|-again$|^run\.lock$')
_OF_THE_SPEED = ('throughput.json', 'steps.json')
_GOING_ON = re.compile(r'^resuming from step (\d+), (\d+) examples', re.MULTILINE)


class Run:
  """A training in a folder of its own, which is started and killed, as often as need be.

  Args:
    folder: for all that it writes.
    steps: to train.

  Attributes:
    starts: how often it was started.
  """

  def __init__(self, folder, steps):
    self.folder = Path(str(folder))
    self.model_dir = self.folder / 'model_dir'
    self.export_dir = self.folder / 'export'
    self.steps = steps
    self.starts = 0
    self._flags = [
        '--model_dir={}'.format(self.model_dir), '--export_dir={}'.format(self.export_dir),
        '--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=momentum',
        '--learning_rate=0.01', '--batch_size={}'.format(BATCH_SIZE),
        '--train_steps={}'.format(steps), '--save_checkpoints_steps=20', '--eval_every_steps=40',
        '--log_every_steps=20', '--noreport_page']

  @property
  def log(self):
    """What the last start has said."""
    return (self.folder / '{}.log'.format(self.starts)).read_text()

  @property
  def result(self):
    """The result of the last start, which came to its end."""
    out = (self.folder / '{}.out'.format(self.starts)).read_text()
    return json.loads(out.splitlines()[-1])

  @property
  def went_on_from(self):
    """The step and the examples seen that the last start says it went on from; None: nothing yet.
    """
    match = _GOING_ON.search(self.log)
    return match and (int(match.group(1)), int(match.group(2)))

  def spawn(self):
    """Starts it, and returns its process."""
    self.folder.mkdir(exist_ok=True)
    self.starts += 1
    environment = dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'))
    environment.pop('TF_CONFIG', None)
    path = str(self.folder / str(self.starts))
    with open(path + '.log', 'w') as log, open(path + '.out', 'w') as out:
      return subprocess.Popen([sys.executable, '-m', 'estimator_train'] + self._flags,
                              stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                              env=environment, start_new_session=True)

  def start(self, kill_after=None):
    """Starts it, and kills it at a moment, if that comes before its end.

    Args:
      kill_after: seconds; None: it is left alone.

    Returns:
      (whether it was killed, the seconds that it lived)
    """
    began = time.monotonic()
    process = self.spawn()
    try:
      code = process.wait(_DEADLINE_SECS if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
      assert kill_after is not None, 'it hangs: ' + self.log
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
      code = process.wait()
    assert code in (0, -signal.SIGKILL), 'code {}: {}'.format(code, self.log)
    return code != 0, time.monotonic() - began

  def start_here(self, kill_at=None):
    """Starts it as a copy of this process, which has TensorFlow imported, and injects a kill.

    Args:
      kill_at: arguments of injected_kills.inject; None: it is left alone.

    Returns:
      Whether it was killed.
    """
    import injected_kills

    from estimator_train import __main__ as program

    self.folder.mkdir(exist_ok=True)
    self.starts += 1
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
      try:
        for number, kind in ((1, 'out'), (2, 'log')):
          os.dup2(os.open(str(self.folder / '{}.{}'.format(self.starts, kind)),
                          os.O_WRONLY | os.O_CREAT), number)
        signal.alarm(_DEADLINE_SECS)
        os.chdir(str(self.folder))
        if kill_at is not None:
          injected_kills.inject(**kill_at)
        os._exit(program.main(self._flags))
      finally:
        os._exit(1)
    try:
      os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    finally:
      os.kill(pid, signal.SIGKILL)  # For when this process is stopped; else it is dead already.
      _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), 'status {}: {}'.format(status, self.log)
    return status != 0

  @property
  def phase(self):
    """What the run was at when it was killed, by its log and by what is there."""
    log = self.log
    done = re.search('examples/sec over|^nothing to train: .*$', log, re.MULTILINE)
    if done:
      ended = ' at step {}\n'.format(self.steps) in log[done.end():]
      return 'exporting' if ended or list(self.export_dir.glob('temp-*')) else 'last evaluation'
    if not re.search(r'^(step \d+/|resuming from)', log, re.MULTILINE):
      return 'resume' if self.steps_saved else 'start-up'
    if self._is_saving():
      return 'saving'
    return 'evaluating' if self._is_evaluating() else 'training'

  def _is_saving(self):
    """Whether there are other checkpoints than TensorFlow's file names, or one half there."""
    names = os.listdir(str(self.model_dir))
    steps = {int(name.split('.')[1][len('ckpt-'):]) for name in names
             if re.match(r'model\.ckpt-\d+\.', name)}
    return steps != self._named() or any('_temp_' in name or '.tmp' in name for name in names)

  def _is_evaluating(self):
    best = self.model_dir / 'best'
    folders = [path.name for path in best.glob('*') if path.is_dir()]
    try:
      kept = json.loads((best / 'best.json').read_text())['checkpoint'].partition('/')[0]
    except FileNotFoundError:
      return bool(folders)
    return any(name != kept for name in folders)

  @property
  def steps_saved(self):
    """The step of the latest checkpoint, by TensorFlow's file; 0 without one."""
    return max(self._named() or {0})

  def _named(self):
    try:
      text = (self.model_dir / 'checkpoint').read_text()
    except FileNotFoundError:
      return set()
    return {int(step) for step in re.findall(r'model\.ckpt-(\d+)', text)}


def differences(run, undisturbed):
  """Returns in what the end of a training differs from that of one that was left alone."""
  found = []

  def same(what, here, there):
    if here != there:
      found.append('{}: {} here and {} there'.format(what, here, there))

  for name in ('global_step', 'examples_seen', 'accuracy', 'average_loss', 'examples'):
    same(name, run.result[name], undisturbed.result[name])
  same('examples_seen', run.result['examples_seen'], run.steps * BATCH_SIZE)
  evaluated, wanted = (_without_paths(each.model_dir / 'evaluation.json')
                       for each in (run, undisturbed))
  same('evaluation.json', evaluated, wanted)
  same('best.json', *(_without_paths(each.model_dir / 'best' / 'best.json')
                      for each in (run, undisturbed)))
  for name in ('flags.txt', 'labels.txt', 'batch_sizes.json'):
    same(name, *((each.model_dir / name).read_text().replace(str(each.folder), '')
                 for each in (run, undisturbed)))
  same('files', *(sorted(_stable_names(each)) for each in (run, undisturbed)))
  found += ['half of a file is left: {}'.format(path) for path in run.folder.rglob('*')
            if HALVES.search(path.name)]
  for name, curve in _curves(undisturbed).items():
    # The first step of each start is there too.
    found += ['{} lacks {}'.format(name, point) for point in curve
              if point not in _curves(run)[name]]
  found += _other_weights(run, undisturbed)
  versions = os.listdir(str(run.export_dir))
  if not versions:
    found.append('nothing is exported')
  return found


def _without_paths(path):
  return {name: value for name, value in json.loads(path.read_text()).items()
          if name != 'checkpoint' or path.name == 'best.json'}


def _curves(run):
  return json.loads((run.model_dir / 'report' / 'curves.json').read_text())


def _stable_names(run):
  """Returns the files of a run, relative to it.

  Each start has event files of its own, and one that trained nothing measured no speed. A kill just
  after the last checkpoint leaves this checkpoint without its graph, which no run reads.
  """
  for path in run.model_dir.rglob('*'):
    if (path.is_file() and 'tfevents' not in path.name and path.name not in _OF_THE_SPEED
        and path.suffix != '.meta'):
      yield str(path.relative_to(run.model_dir))


def _other_weights(run, undisturbed):
  import h5py
  import numpy as np
  import tensorflow.compat.v1 as tf
  from tensorflow.python.saved_model import loader_impl

  def of_checkpoint(path):
    reader = tf.train.NewCheckpointReader(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

  def of_h5(path):
    values = {}
    with h5py.File(str(path), 'r') as file:
      file['model_weights'].visititems(
          lambda name, item: values.update({name: item[()]}) if hasattr(item, 'shape') else None)
    return values

  def compare(what, here, there):
    assert there
    if sorted(here) != sorted(there):
      return ['{} has other variables'.format(what)]
    return ['{}: {} differs by up to {}'.format(what, name, np.max(np.abs(
        here[name].astype(float) - there[name]))) for name in there
            if not np.array_equal(here[name], there[name])]

  name = 'model.ckpt-{}'.format(run.steps)
  wanted = of_checkpoint(undisturbed.model_dir / name)
  found = compare('the last checkpoint', of_checkpoint(run.model_dir / name), wanted)
  found += compare('model.h5', of_h5(run.model_dir / 'model.h5'),
                   of_h5(undisturbed.model_dir / 'model.h5'))
  for version in glob.glob(str(run.export_dir / '*')):
    exported = of_checkpoint(Path(version) / 'variables' / 'variables')
    found += compare(version, exported, {key: wanted[key] for key in exported})
    # Without a session, as that has threads, and this process is to be copied.
    if not loader_impl.parse_saved_model(version).meta_graphs:
      found.append('{} has no graph'.format(version))
  return found
