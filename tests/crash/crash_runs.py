"""A training that is started and killed, and how its files differ from those of another one."""

import contextlib
import functools
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH_SIZE = 32
_DEADLINE_SECS = 300
PARTIAL_FILES = re.compile(r'\.part$|_temp_|^temp-|\.tmp|-again$|^run\.lock$')
# What the log has when a phase begins.
_PHASES = (('examples/sec over', 'export'), (r'replica\(s\) on', 'training'),
           ('building the model', 'graph'), ('preparing the data', 'data'),
           ('importing TensorFlow', 'import'), ('', 'start'))


class Run:
  """A training in a folder of its own, which is started and killed repeatedly.

  Args:
    folder: for all that it writes.
    steps: to train.

  Attributes:
    starts: how often it was started.
  """

  def __init__(self, folder, steps):
    self.folder, self.steps, self.starts = Path(str(folder)), steps, 0
    self.model_dir, self.export_dir = self.folder / 'model_dir', self.folder / 'export'
    self._flags = [
        '--model_dir={}'.format(self.model_dir), '--export_dir={}'.format(self.export_dir),
        '--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=momentum',
        '--learning_rate=0.01', '--batch_size={}'.format(BATCH_SIZE),
        '--train_steps={}'.format(steps), '--save_checkpoints_steps=20', '--eval_every_steps=40',
        '--log_every_steps=20', '--noreport_page']

  @property
  def log(self):
    """The log of the last start."""
    return (self.folder / '{}.log'.format(self.starts)).read_text()

  @property
  def result(self):
    """The result of the last start; None if it has not come to its end."""
    out = (self.folder / '{}.out'.format(self.starts)).read_text()
    return json.loads(out.splitlines()[-1]) if out else None

  @property
  def phase(self):
    return next(phase for pattern, phase in _PHASES if re.search(pattern, self.log))

  @property
  def resumed_from(self):
    """The step and the examples from which the last start resumed; None if it started anew."""
    match = re.search(r'^resuming from step (\d+), (\d+) examples', self.log, re.MULTILINE)
    return match and (int(match.group(1)), int(match.group(2)))

  @property
  def step_saved(self):
    """The step of the latest checkpoint, by TensorFlow's file; 0 without one."""
    with contextlib.suppress(FileNotFoundError):
      text = (self.model_dir / 'checkpoint').read_text()
      return max(map(int, re.findall(r'model\.ckpt-(\d+)', text)), default=0)
    return 0

  def _open_outputs(self):
    self.folder.mkdir(exist_ok=True)
    self.starts += 1
    return [(self.folder / '{}.{}'.format(self.starts, kind)).open('w') for kind in ('out', 'log')]

  def start(self, kill_after_secs=None):
    """Starts it, kills it after so many seconds, if any, and waits for its end.

    Returns:
      (the exit code; the phase at the kill, None if it had come to its end before; the seconds)
    """
    out, log = self._open_outputs()
    environment = dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'))
    with out, log:
      process = subprocess.Popen([sys.executable, '-m', 'estimator_train', *self._flags],
                                 stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                                 env=environment, start_new_session=True)
    began, phase = time.monotonic(), None
    try:
      if kill_after_secs is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(kill_after_secs)
        phase = None if self.result else self.phase
        if phase:
          process.kill()
      code = process.wait(_DEADLINE_SECS)
    finally:
      process.kill()
      process.wait()
    return code, phase, time.monotonic() - began

  def start_here(self, kill_at=None):
    """Starts it as a copy of this process, which has TensorFlow imported.

    Args:
      kill_at: the arguments of `inject_kill`; None: it is not killed.

    Returns:
      Whether it was killed.
    """
    from estimator_train import __main__ as program

    outputs = self._open_outputs()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
      try:
        for number, output in enumerate(outputs, 1):
          os.dup2(output.fileno(), number)
        signal.alarm(_DEADLINE_SECS)
        os.chdir(str(self.folder))
        if kill_at is not None:
          inject_kill(*kill_at)
        os._exit(program.main(self._flags))
      finally:
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), 'status {}: {}'.format(status, self.log)
    return status != 0


def _patched_functions():
  """Returns what is called at each point at which a run can be killed."""
  import tensorflow.compat.v1 as tf
  from tensorflow.python.lib.io import file_io
  from tensorflow.python.training import checkpoint_management, saver

  from estimator_train.modes import train
  from estimator_train.reports import page
  from estimator_train.run_dir import run_lock
  from estimator_train.tf_patches import saved_weights
  from estimator_train.training import evaluation
  from estimator_train.training.checkpoints import best_checkpoint

  saver.checkpoint_management = checkpoint_management  # It has another name for it.
  return {
      'os.replace': (os, 'replace'), 'os.rename': (os, 'rename'), 'os.link': (os, 'link'),
      'rmtree': (shutil, 'rmtree'), 'save': (tf.train.Saver, 'save'),
      'weights': (saved_weights, '_save_variables'),
      'state': (checkpoint_management, 'update_checkpoint_state_internal'),
      'rename': (file_io, 'rename'), 'delete': (file_io, 'delete_file'),
      'lock': (run_lock, '_acquire'), 'evaluate': (evaluation._EvaluationGraph, 'run'),
      'promote': (best_checkpoint, 'promote_if_better'),
      'page': (page, 'write_page_of_finished_run'), 'saved_model': (tf.saved_model.Builder, 'save'),
      'model.h5': (train.h5_model, 'write_h5')}


def inject_kill(point, when, match='', count=1):
  """Makes this process kill itself at a call.

  Args:
    point: a key of `_patched_functions`; or `_temp_`, a file that TensorFlow's C++ code writes.
    when: `before` or `after` the call.
    match: a pattern of one of the texts among the arguments, or of the file.
    count: which of such calls.
  """
  def die():
    os.kill(os.getpid(), signal.SIGKILL)

  def watch():
    while not glob.glob(match):
      pass
    die()

  if point == '_temp_':
    threading.Thread(target=watch, daemon=True).start()
    return
  owner, name = _patched_functions()[point]
  call, num_left = getattr(owner, name), [count]

  @functools.wraps(call)
  def call_and_die(*args, **kwargs):
    texts = [str(value) for value in [*args, *kwargs.values()]
             if isinstance(value, (str, bytes, int, os.PathLike))]
    if not any(re.search(match, text) for text in texts or ['']):
      return call(*args, **kwargs)
    num_left[0] -= 1
    if num_left[0] == 0 and when == 'before':
      die()
    result = call(*args, **kwargs)
    if num_left[0] == 0:
      die()
    return result

  setattr(owner, name, call_and_die)


def differences(run, undisturbed):
  """Returns in what the end of a run differs from that of one that was left alone."""
  def read(each, *names):
    return json.loads(each.model_dir.joinpath(*names).read_text())

  def outcome(each):
    evaluation = read(each, 'evaluation.json')
    del evaluation['checkpoint']  # A path.
    return dict(
        {name: (each.model_dir / name).read_text().replace(str(each.folder), '')
         for name in ('flags.txt', 'labels.txt', 'batch_sizes.json')},
        result=[each.result[name] for name in ('global_step', 'examples_seen', 'accuracy',
                                               'average_loss', 'examples')],
        evaluation=evaluation, best=read(each, 'best', 'best.json'),
        files=sorted(_stable_names(each)), weights=_weights(each))

  expected, found = outcome(undisturbed), outcome(run)
  wrong = ['{}: {} here and {} there'.format(name, found[name], expected[name])
           for name in expected if found[name] != expected[name]]
  if run.result['examples_seen'] != run.steps * BATCH_SIZE:
    wrong.append('{} examples seen'.format(run.result['examples_seen']))
  wrong += ['a partial file is left: {}'.format(path) for path in run.folder.rglob('*')
            if PARTIAL_FILES.search(path.name)]
  curves = read(run, 'report', 'curves.json')
  # The first step of each start is there, too.
  wrong += ['{} lacks {}'.format(name, point)
            for name, curve in read(undisturbed, 'report', 'curves.json').items()
            for point in curve if point not in curves[name]]
  return wrong


def _stable_names(run):
  """Yields the files of a run, relative to it.

  Each start has event files of its own, and one that trained nothing measured no speed. A kill just
  after the last checkpoint leaves this checkpoint without its graph, which no run reads. A stop
  signal saves a checkpoint, which takes the place of an older one: their steps are left out.
  """
  for path in run.model_dir.rglob('*'):
    if (path.is_file() and 'tfevents' not in path.name and path.suffix != '.meta'
        and path.name not in ('throughput.json', 'steps.json')):
      yield re.sub(r'^model\.ckpt-\d+', 'model.ckpt', str(path.relative_to(run.model_dir)))


def _weights(run):
  """Returns a digest of each array in the last checkpoint, `model.h5` and the latest export."""
  import h5py
  import numpy as np
  import tensorflow.compat.v1 as tf
  from tensorflow.python.saved_model import loader_impl

  arrays = {}
  latest, *_ = sorted(run.export_dir.iterdir(), reverse=True)
  assert loader_impl.parse_saved_model(str(latest)).meta_graphs  # No session: it has threads.
  for kind, path in (('checkpoint', run.model_dir / 'model.ckpt-{}'.format(run.steps)),
                     ('export', latest / 'variables' / 'variables')):
    reader = tf.train.NewCheckpointReader(str(path))
    arrays.update({(kind, name): reader.get_tensor(name)
                   for name in reader.get_variable_to_shape_map()})
  with h5py.File(str(run.model_dir / 'model.h5'), 'r') as file:
    file['model_weights'].visititems(lambda name, item: arrays.update(
        {('h5', name): item[()]} if hasattr(item, 'shape') else {}))
  return {name: hash(np.asarray(array).tobytes()) for name, array in arrays.items()}
