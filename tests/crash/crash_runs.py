"""A training that is started and killed, and a comparison of its files with those of another."""

import contextlib
import functools
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from conftest import ROOT
from program_server import ServedProcess

BATCH_SIZE, STEPS = 32, 120
_DEADLINE_SECS = 300
_PARTIAL_FILES = re.compile(r'\.part$|_temp_|^temp-|\.tmp|-again$|^run\.lock$')
_PROGRAM = '''
import json, sys
import crash_runs
from estimator_train import __main__ as program
kill_at, *flags = sys.argv[1:]
if json.loads(kill_at):
  crash_runs.inject_kill(*json.loads(kill_at))
sys.exit(program.main(flags))
'''


class Run:
  """A training in a folder of its own, which is started and killed repeatedly.

  Args:
    folder: for all that it writes.

  Attributes:
    secs: how long the last start took.
  """

  def __init__(self, folder):
    self.folder, self.secs, self._starts = folder, 0., 0
    self.model_dir, self.export_dir = folder / 'model_dir', folder / 'export'
    self._flags = [
        '--model_dir={}'.format(self.model_dir), '--export_dir={}'.format(self.export_dir),
        '--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=momentum',
        '--learning_rate=0.01', '--batch_size={}'.format(BATCH_SIZE),
        '--train_steps={}'.format(STEPS), '--save_checkpoints_steps=20', '--eval_every_steps=40',
        '--log_every_steps=20', '--noreport_page']

  @property
  def result(self):
    """The result of the last start, which has come to its end."""
    return json.loads(self._path('out').read_text().splitlines()[-1])

  def start(self, kill_at=None, kill_after_secs=None):
    """Starts it, may kill it, and waits for its end.

    Args:
      kill_at: the arguments of `inject_kill`.
      kill_after_secs: when to kill it, if it is still running.

    Returns:
      Whether it was killed.
    """
    saved, began = self._step_saved(), time.monotonic()
    self._starts += 1
    outputs = self._path('out'), self._path('log')
    for path in outputs:
      path.touch()
    process = ServedProcess(
        ['-c', _PROGRAM, json.dumps(kill_at), *self._flags], self.folder, dict(
            os.environ, PYTHONPATH='{0}:{0}/tests:{0}/tests/crash'.format(ROOT)), outputs)
    try:
      if kill_after_secs is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(kill_after_secs)
        process.send_signal(signal.SIGKILL)
      code = process.wait(_DEADLINE_SECS)
    finally:
      process.send_signal(signal.SIGKILL)
    self.secs = time.monotonic() - began
    log = self._path('log').read_text()
    assert code in (0, -signal.SIGKILL, 255), log  # Python 3.6 has 255 for all signals.
    resumed = re.search(r'^resuming from step (\d+), (\d+) examples', log, re.MULTILINE)
    if resumed:
      assert list(map(int, resumed.groups())) == [saved, saved * BATCH_SIZE], log
    else:
      assert not saved or not re.search(r'^step \d+/', log, re.MULTILINE), log
    return code != 0

  def _path(self, kind):
    return self.folder / '{}.{}'.format(self._starts, kind)

  def _step_saved(self):
    """Returns the step of the latest checkpoint, by TensorFlow's file; 0 without one."""
    with contextlib.suppress(FileNotFoundError):
      text = (self.model_dir / 'checkpoint').read_text()
      return max(map(int, re.findall(r'model\.ckpt-(\d+)', text)), default=0)
    return 0


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


def assert_same_end(run, undisturbed):
  """Compares all that a run has left with what one has left that was not killed."""
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

  assert outcome(run) == outcome(undisturbed)
  assert run.result['examples_seen'] == STEPS * BATCH_SIZE
  assert not [path for path in run.folder.rglob('*') if _PARTIAL_FILES.search(path.name)]
  curves = read(run, 'report', 'curves.json')
  # The first step of each start is there, too.
  for name, curve in read(undisturbed, 'report', 'curves.json').items():
    assert [point for point in curve if point not in curves[name]] == [], name


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
  for kind, path in (('checkpoint', run.model_dir / 'model.ckpt-{}'.format(STEPS)),
                     ('export', latest / 'variables' / 'variables')):
    reader = tf.train.NewCheckpointReader(str(path))
    arrays.update({(kind, name): reader.get_tensor(name)
                   for name in reader.get_variable_to_shape_map()})
  with h5py.File(str(run.model_dir / 'model.h5'), 'r') as file:
    file['model_weights'].visititems(lambda name, item: arrays.update(
        {('h5', name): item[()]} if hasattr(item, 'shape') else {}))
  return {name: hash(np.asarray(array).tobytes()) for name, array in arrays.items()}
