"""What the tests share: a clean environment, the program in this process, and the real data."""

import collections
import contextlib
import functools
import gc
import importlib.util
import itertools
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import generated_data
import hypothesis
import numpy as np
import psutil
import pytest
from PIL import Image

from estimator_train import __main__ as program
from estimator_train.reports import page

# Graphs of TensorFlow are many objects, most of them for as long as a test: by its own thresholds
# Python spends a tenth of the time looking for those that have gone.
gc.set_threshold(200000, 50, 50)

if os.environ.get('TESTS_V2_BEHAVIOR'):  # As scripts for TensorFlow 1.15 and 2 call it first.
  import tensorflow

  tensorflow.compat.v1.enable_v2_behavior()

# A slow machine fails no test.
hypothesis.settings.register_profile(
    'any_speed', deadline=None, database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile(
    'long', hypothesis.settings.get_profile('any_speed'), max_examples=10000)
hypothesis.settings.load_profile('any_speed')

# Where the tests are run in the background, the shell may have SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Ignored under nohup.

ROOT = Path(__file__).resolve().parent.parent
# The variable is for the tests of the tests.
REAL_DATA = Path(os.environ.get('TESTS_REAL_DATA', str(ROOT.parent / 'shared' / 'data')))


class Outcome(NamedTuple):
  """What a run of the program left: its code, its output, and the result on its last line."""
  code: int
  out: str
  err: str

  @property
  def result(self):
    return json.loads(self.out.splitlines()[-1])


def load_script(name):
  """Returns scripts/NAME.py as a module."""
  spec = importlib.util.spec_from_file_location(name, str(ROOT / 'scripts' / (name + '.py')))
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def run_process(*command, env=None, cwd=ROOT, timeout=300, **options):
  """Runs a command, with more environment variables, and returns its code and its outputs."""
  return subprocess.run(
      list(map(str, command)), cwd=str(cwd), env=dict(os.environ, **(env or {})), timeout=timeout,
      **dict({'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'universal_newlines': True},
             **options))


def batches(input_fn, count=None):
  """Returns the batches of an `input_fn` as arrays, and the graph that made them."""
  import tensorflow.compat.v1 as tf

  found = []
  with tf.Graph().as_default() as graph, tf.Session() as session:
    following = tf.data.make_one_shot_iterator(input_fn()).get_next()
    with contextlib.suppress(tf.errors.OutOfRangeError):
      while len(found) != count:
        found.append(session.run(following))
  return found, graph


@contextlib.contextmanager
def keras_session():
  """Yields a session of a new graph, both of which are the default ones, also of Keras."""
  import tensorflow.compat.v1 as tf

  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    yield session
    tf.keras.backend.set_session(None)


def contents_of(folder):
  """Returns the bytes of the files in a folder and below, by their paths in the folder."""
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


def process_state():
  """Returns what a function of the library must restore."""
  return ([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
          list(logging.root.handlers), logging.root.level, list(warnings.filters), list(sys.argv),
          list(logging.getLogger('estimator_train').handlers), dict(os.environ))


def is_alive(pid):
  """Whether a process runs still."""
  try:
    return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def wait_until(condition, secs=300):
  """Waits for what another process does."""
  deadline = time.monotonic() + secs
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def pytest_addoption(parser):
  parser.addoption('--order', default='file', metavar='file|reversed|SEED',
                   help='order of the tests: as in the files, reversed, or shuffled by a number: '
                        'files first, then the tests of each')


@pytest.hookimpl(trylast=True)  # After `-m` has deselected tests.
def pytest_collection_modifyitems(config, items):
  order = config.getoption('--order')
  files = {}
  for item in items:
    files.setdefault(item.fspath, []).append(item)
  tests = list(files.values())
  if order == 'file':  # Files of which most tests take long are first, so that none is last.
    tests.sort(key=lambda of_file: -sum(any(map(item.get_closest_marker, ('slow', 'cluster')))
                                        for item in of_file) / len(of_file))
  elif order == 'reversed':
    tests = [of_file[::-1] for of_file in tests[::-1]]
  else:
    randoms = random.Random(int(order))
    tests = [randoms.sample(of_file, len(of_file)) for of_file in tests]
    randoms.shuffle(tests)
  items[:] = itertools.chain.from_iterable(tests)


@pytest.hookimpl(tryfirst=True)  # Before the fixtures of the module.
def pytest_runtest_setup(item):
  """Leaves out the optimization of graphs, a third of the time of small ones, in this process.

  It is not left out of tests that are marked to want it, nor in other processes.
  """
  session = sys.modules.get('tensorflow.python.client.session')
  if session is None:
    return
  init = getattr(session.BaseSession.__init__, '__wrapped__', session.BaseSession.__init__)

  @functools.wraps(init)
  def init_without(self, target='', graph=None, config=None):
    changed = session.config_pb2.ConfigProto()
    changed.CopyFrom(config or changed)
    changed.graph_options.rewrite_options.disable_meta_optimizer = True
    init(self, target, graph, changed)

  session.BaseSession.__init__ = (
      init if item.get_closest_marker('optimized_graphs') else init_without)


def real_data(name):
  """Returns a folder of the real data, or skips the test where that is not there."""
  folder = REAL_DATA / name
  if not folder.is_dir():
    pytest.skip('requires the published data sets in ../shared/data')
  return folder


def pytest_terminal_summary(terminalreporter, config):
  write = terminalreporter.write_line
  skipped = terminalreporter.stats.get('skipped', [])
  reasons = collections.Counter(report.longrepr[2].replace('Skipped: ', '') for report in skipped)
  for reason, count in sorted(reasons.items()):
    write('SKIPPED {} {}: {}'.format(count, 'test' if count == 1 else 'tests', reason))
  if not REAL_DATA.is_dir():
    write('Tests of data sets used generated files only: there is no ../shared/data')
  if config.getoption('markexpr') == 'not slow':
    write('Tests that are marked slow are left out: tests/run.sh --all runs them')
  if 'TESTS_BEGAN_SECS' in os.environ:
    secs = int(time.time()) - int(os.environ['TESTS_BEGAN_SECS'])
    write('The tests took {} min {} s without their set-up, on {} cores'.format(
        secs // 60, secs % 60, len(os.sched_getaffinity(0))))


@pytest.fixture(autouse=True)
def clean_environment(cache_home):
  """Restores what a run of the program in this process changes, and what tests may."""
  folder = os.getcwd()
  handlers = {number: signal.getsignal(number)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
  limits = {number: resource.getrlimit(number)
            for number in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)}
  # An earlier run of the program has sent the log to its own standard error.
  log = mock.patch.multiple(logging.getLogger('estimator_train'), handlers=[], propagate=True)
  path = mock.patch.object(sys, 'path', list(sys.path))
  with mock.patch.dict(os.environ, XDG_CACHE_HOME=cache_home), path, log:
    os.environ.pop('TF_CONFIG', None)
    yield
  for number, limit in limits.items():
    resource.setrlimit(number, limit)
  for number, handler in handlers.items():
    signal.signal(number, handler)
  os.chdir(folder)


def python_installed_by(script, title):
  """Returns the Python of the environment that a script makes; skips the test if it cannot."""
  done = run_process(ROOT / 'scripts' / script, stderr=subprocess.STDOUT, timeout=900)
  last_line = done.stdout.strip().rpartition('\n')[2]
  if done.returncode:
    pytest.skip('requires an environment with {}: {}'.format(title, last_line))
  return last_line


@pytest.fixture(scope='session')
def clients_python():
  """The Python of the environment with today's programs that load exported models."""
  return python_installed_by('install_clients', 'TensorFlow 2')


@pytest.fixture(scope='session')
def cache_home(tmp_path_factory):
  return str(tmp_path_factory.mktemp('cache_home'))


@pytest.fixture(autouse=True)
def no_page(request, monkeypatch):
  """Leaves out the page, which takes a second a run, but of tests that are marked to want it."""
  if not request.node.get_closest_marker('page'):
    monkeypatch.setattr(page, 'write_page_of_finished_run', lambda *unused: None)


@pytest.fixture
def run_program(capsys):
  """Runs the program in this process, as importing TensorFlow takes seconds."""
  def run(*arguments):
    capsys.readouterr()
    code = program.main([str(argument) for argument in arguments])
    return Outcome(code, *capsys.readouterr())

  return run


@pytest.fixture
def run_well(run_program):
  """Runs the program in this process, which must succeed, and state what it has made."""
  import mode_runs

  def run(*arguments):
    done = run_program(*arguments)
    assert done.code == 0, done.err
    if not program.command_line.wants_help(list(map(str, arguments))):
      mode_runs.check_last_lines(done.err)
    return done

  return run


@pytest.fixture
def jupyter_kernel(monkeypatch):
  """Makes this process look like a Jupyter kernel without ipywidgets."""
  shell = types.SimpleNamespace(kernel=object())
  monkeypatch.setitem(sys.modules, 'IPython', types.SimpleNamespace(get_ipython=lambda: shell))
  monkeypatch.setitem(sys.modules, 'ipywidgets', None)
  return shell


@pytest.fixture
def cluster(tmp_path):
  """A cluster whose processes end with the test."""
  import cluster_processes

  folder = tmp_path / 'logs'
  folder.mkdir()
  processes = cluster_processes.Cluster(folder)
  yield processes
  processes.end()


@pytest.fixture
def launch(tmp_path):
  """Starts local clusters of stand-ins in a folder of its own; none outlives the test."""
  from launches import Launch

  launch = Launch(tmp_path)
  yield launch
  launch.clean_up()


@pytest.fixture
def mounted(tmp_path):
  """Mounts a file system in memory, where that is allowed; it does not outlive the test."""
  folder = tmp_path / 'disk'

  def mount(options):
    if shutil.which('mount') is None:
      pytest.skip('requires the program mount: not found')
    folder.mkdir()
    if run_process('mount', '-t', 'tmpfs', '-o', options, 'none', folder).returncode:
      pytest.skip('requires the right to mount a file system')
    return folder

  yield mount
  # Lazily, as TensorFlow has the file of its events open.
  while folder.exists() and not run_process('umount', '-l', folder).returncode:
    pass


HAS_REAL_IMAGES = (REAL_DATA / 'bad-images').is_dir()


@pytest.fixture(scope='session', params=['real'] * HAS_REAL_IMAGES + ['generated'])
def awkward_images(request, tmp_path_factory):
  """A folder of ten images that are damaged or unusual."""
  if request.param == 'real':
    return REAL_DATA / 'bad-images'
  folder = tmp_path_factory.mktemp('bad-images')
  generated_data.write_awkward_images(folder)
  return folder


@pytest.fixture(scope='session')
def write_images():
  """Writes files, in the format of their names, of uint8 arrays [height, width, 1 or 3]."""
  def write(images):
    for path, image in images.items():
      path.parent.mkdir(parents=True, exist_ok=True)
      gray_or_rgb = image if image.shape[2] == 3 else image[..., 0]
      Image.fromarray(gray_or_rgb).save(str(path), quality=95)

  return write


@pytest.fixture
def image_folders(tmp_path, write_images):
  """Folders of small images: `train` has 12 of A and 6 of B, `test` 5 of each; A is darker."""
  random = np.random.RandomState(1)

  def image(bright):
    return random.randint(0, 128, (24 + random.randint(9), 30, 1)).astype(np.uint8) + 127 * bright

  write_images({tmp_path / 'data' / split / label / '{}.jpeg'.format(index): image(label == 'B')
                for split, label, count in (('train', 'A', 12), ('train', 'B', 6),
                                            ('test', 'A', 5), ('test', 'B', 5))
                for index in range(count)})
  return tmp_path / 'data'


def record_of(image, label, **features):
  """Returns a serialized tf.train.Example of the standard image schema."""
  import tensorflow.compat.v1 as tf

  return tf.train.Example(features=tf.train.Features(feature=dict({
      'image/encoded': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
      'image/class/label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))},
      **features))).SerializeToString(deterministic=True)


def write_records(path, records, compression=''):
  """Writes a TFRecord file."""
  import tensorflow.compat.v1 as tf

  path.parent.mkdir(parents=True, exist_ok=True)
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for record in records:
      writer.write(record)


@pytest.fixture
def image_records(image_folders):
  """The images of `image_folders` in files: `train` in seven shards, `test` in two."""
  folder = image_folders.parent / 'records'
  for split, shards in (('train', 7), ('test', 2)):
    paths = sorted((image_folders / split).glob('*/*.jpeg'))
    records = [record_of(path.read_bytes(), 'AB'.index(path.parent.name)) for path in paths]
    bounds = [len(paths) * index // shards for index in range(shards + 1)]
    for index, (start, stop) in enumerate(zip(bounds, bounds[1:])):
      write_records(folder / '{}-{:05d}-of-{:05d}'.format(split, index, shards),
                    records[start:stop])
  (folder / 'labels.txt').write_text('0:A\n1:B\n')
  return folder


@pytest.fixture
def own_graph(monkeypatch):
  """A new default graph and Keras session for a test; leaves out what takes long in TensorFlow."""
  import tensorflow.compat.v1 as tf
  from tensorflow.python.training import training_util

  from estimator_train.tf_patches import environment

  monkeypatch.setattr(training_util, 'write_graph', lambda *arguments, **options: None)
  with environment.without_deprecation_checks(), tf.Graph().as_default():
    tf.keras.backend.set_session(None)
    yield
    tf.keras.backend.set_session(None)
    tf.summary.FileWriterCache.clear()


@pytest.fixture(scope='session')
def finished_run(tmp_path_factory, cache_home):
  """The model_dir of a run on the sample of Fashion-MNIST; tests read it, and change a copy."""
  folder = tmp_path_factory.mktemp('finished_run') / 'model'
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', cache_home)
    patch.delenv('TF_CONFIG', raising=False)
    assert program.main([
        '--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--train_steps=20',
        '--batch_size=50', '--num_cpu_replicas=2', '--save_checkpoints_steps=10',
        '--noreport_page', '--model_dir={}'.format(folder)]) == 0
  return folder


@pytest.fixture
def copied_run(finished_run, tmp_path):
  """A copy of `finished_run`."""
  return Path(shutil.copytree(str(finished_run), str(tmp_path / 'copied_run')))
