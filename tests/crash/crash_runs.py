"""A training that is started and killed, and a comparison of its files with those of another."""

import contextlib
import functools
import glob
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import tensorflow.compat.v1 as tf
from cluster_processes import Task

BATCH_SIZE, STEPS = 32, 120
# What is called at each point at which a run can be killed.
_FUNCTIONS = {
    'os.replace': 'os:replace', 'os.rename': 'os:rename', 'os.link': 'os:link',
    'rmtree': 'shutil:rmtree', 'save': 'tensorflow.compat.v1:train.Saver.save',
    'weights': 'estimator_train.model.initial_weights:save_initial_weights',
    'state': 'tensorflow.python.training.saver:checkpoint_management.'
             'update_checkpoint_state_internal',
    'rename': 'tensorflow.python.lib.io.file_io:rename',
    'delete': 'tensorflow.python.lib.io.file_io:delete_file',
    'lock': 'estimator_train.run_dir.lock:_acquire_lock',
    'evaluate': 'estimator_train.training.evaluation:_EvaluationGraph.evaluate',
    'promote': 'estimator_train.checkpoints.best_checkpoint:promote_if_better',
    'page': 'estimator_train.reports.page:write_page_of_finished_run',
    'saved_model': 'tensorflow.compat.v1:saved_model.Builder.save',
    'model.h5': 'estimator_train.exporting.h5_model:write_h5_file'}
_PARTIAL_FILES = re.compile(r'\.part$|_temp_|\.tmp|-again$|^run\.lock$')
_PROGRAM = '''
import json, os, sys
from estimator_train import __main__ as program
folder, kill_at, *flags = sys.argv[1:]
os.chdir(folder)
if json.loads(kill_at):
  from crash import crash_runs
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
    self.folder, self.secs, self._tasks = folder, 0., []
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
    return self._tasks[-1].result

  def start(self, kill_at=None, kill_after_secs=None):
    """Starts it, may kill it, and waits for its end.

    Args:
      kill_at: the arguments of `inject_kill`.
      kill_after_secs: when to kill it, if it is still running.

    Returns:
      Whether it was killed.
    """
    checkpoint = tf.train.latest_checkpoint(str(self.model_dir)) or '-0'
    saved, began = int(checkpoint.rpartition('-')[2]), time.monotonic()
    task = Task([sys.executable, '-c', _PROGRAM, str(self.folder), json.dumps(kill_at),
                 *self._flags], self.folder / '{}.log'.format(len(self._tasks)))
    self._tasks.append(task)
    try:
      if kill_after_secs is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
          task.process.wait(kill_after_secs)
        task.signal(signal.SIGKILL)
      code = task.code()
    finally:
      task.end()
    self.secs, log = time.monotonic() - began, task.log
    assert code in (0, -signal.SIGKILL, 255), log  # Python 3.6 has 255 for all signals.
    resumed = re.search(r'^resuming from step (\d+), (\d+) examples', log, re.MULTILINE)
    if resumed:
      assert list(map(int, resumed.groups())) == [saved, saved * BATCH_SIZE], log
    else:
      assert not saved or not re.search(r'^step \d+/', log, re.MULTILINE), log
    return code != 0


def inject_kill(point, when, match='', count=1):
  """Makes this process kill itself at a call.

  Args:
    point: a key of `_FUNCTIONS`; or `_temp_`, a file that TensorFlow's C++ code writes.
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
  module, _, path = _FUNCTIONS[point].partition(':')
  *owners, name = path.split('.')
  owner = functools.reduce(getattr, owners, importlib.import_module(module))
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
  def curves_of(each):
    return json.loads((each.model_dir / 'report' / 'curves.json').read_text())

  def outcome(each):
    return dict(
        {name: (each.model_dir / name).read_text().replace(str(each.folder), '')
         for name in ('data.json', 'flags.txt', 'labels.txt', 'batch_sizes.json',
                      'evaluation.json', 'best/best.json')},
        result=[each.result[name] for name in ('global_step', 'examples_seen', 'accuracy',
                                               'average_loss', 'examples')],
        files=sorted(_stable_names(each)), weights=_weights(each))

  assert outcome(run) == outcome(undisturbed)
  assert run.result['examples_seen'] == STEPS * BATCH_SIZE
  assert not [path for path in run.folder.rglob('*') if _PARTIAL_FILES.search(path.name)]
  curves = curves_of(run)
  # The first step of each start is there, too.
  for name, curve in curves_of(undisturbed).items():
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
  """Returns digests of the weights in the last checkpoint, the latest export and `model.h5`."""
  import h5py
  from tensorflow.python.saved_model import loader_impl

  latest = max(run.export_dir.iterdir())
  assert loader_impl.parse_saved_model(str(latest)).meta_graphs  # No session: it has threads.
  digests = {path.name: hash(path.read_bytes()) for path in (
      *run.model_dir.glob('model.ckpt-{}.data*'.format(STEPS)), *latest.glob('variables/*.data*'))}
  with h5py.File(str(run.model_dir / 'model.h5'), 'r') as file:
    file['model_weights'].visititems(lambda name, item: digests.update(
        {name: hash(item[()].tobytes())} if hasattr(item, 'shape') else {}))
  return digests
