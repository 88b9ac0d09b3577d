"""What the tests of several modes share."""

import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import generated_data

from estimator_train.data import mnist
from estimator_train.launcher import local_cluster
from estimator_train.modes.input_benchmark import measurement
from estimator_train.settings import command_line
from estimator_train.system import child_process

# Flags of runs whose steps take no time.
QUICK = ['--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--log_every_steps=1',
         '--model=own_models:two_layers']


class Runs:
  """Stands in for child processes that train: leaves their files, and remembers their settings.

  Args:
    rates: examples/sec by the name of the folder; None: the run fails. Others train at 100
      examples/sec a replica.
    fails: whether the run with these settings fails.
    stop: raised in the third run.

  Attributes:
    seen: the name of the folder of each run.
    found: the files that were in the folder before each run.
    launches: the number of workers, the cores and the settings of each run.
  """

  def __init__(self, rates=None, fails=lambda settings: False, stop=None):
    self.rates, self.fails, self.stop = rates or {}, fails, stop
    self.seen, self.found, self.launches = [], [], []

  @property
  def settings(self):
    return [settings for _, _, settings in self.launches]

  def __call__(self, arguments, log, module='estimator_train', cores=()):
    workers = 1
    if module == 'estimator_train.launcher.local_cluster':
      flags, arguments = local_cluster._parse_arguments(arguments)
      workers = flags.local_workers
    settings = command_line.parse(arguments)
    self.launches.append((workers, cores, settings))
    self.seen.append(os.path.basename(settings.run.model_dir))
    replicas = workers * (settings.devices.num_cpu_replicas or max(settings.devices.num_gpus, 1))
    kind = 'gpu' if settings.devices.num_gpus > 0 else 'cpu'
    rate = self.rates.get(self.seen[-1], 100. * replicas)
    figures = {
        'examples_per_sec': rate or 0., 'steady_examples_per_sec': 512., 'global_step': 77,
        'num_replicas': replicas, 'global_batch_size': settings.optimizer.batch_size,
        'per_replica_batch_size': settings.optimizer.batch_size // replicas,
        'shares': {'input': rate / 1000} if rate and settings.dataset != 'synthetic' else None,
        'devices': ['/{}:{}'.format(kind, index) for index in range(replicas)],
        'tensorflow_version': '1.15.0'}
    evaluation = {'accuracy': .87 + .01 * len(self.seen), 'average_loss': .5}
    folder = Path(settings.run.model_dir)
    (folder / 'keras').mkdir(parents=True, exist_ok=True)
    self.found.append(list(folder.glob('*.*')))
    for path, content in ((log, ''), ('flags.txt', ''), ('model.ckpt-3.index', ''),
                          ('throughput.json', json.dumps(figures)),
                          ('evaluation.json', json.dumps(evaluation))):
      (folder / path).write_text(content)
    if self.stop is not None and len(self.seen) == 3:
      raise self.stop
    if rate is None or self.fails(settings):
      return child_process.ChildRun(
          2, '', 'error: a fault: {}: fix it'.format(settings.optimizer.batch_size))
    return child_process.ChildRun(0)


def fails(done, message):
  """Asserts that a run ended with an error of the user, in one line at the end."""
  assert done.code == 2 and done.out == '', done.err
  last = done.err.splitlines()[-1]
  assert last.startswith('error: ') and message in last, last
  return True


def image_flags(folder, pattern='*/*.jpeg'):
  """Returns the flags of the data set in `image_folders`."""
  return ['--dataset=image_folder', '--train_pattern={}/train/{}'.format(folder, pattern),
          '--eval_pattern={}/test/{}'.format(folder, pattern)]


def publish_generated_files(folder, monkeypatch, num_train=60, num_test=20):
  """Writes idx files, and has them be the published ones of both MNISTs, at no address."""
  generated_data.write_idx_files(folder, num_train, num_test)
  for name in ('mnist', 'fashion_mnist'):
    class_names, files = mnist.DATA_SETS[name]
    contents = [(folder / file.name).read_bytes() for file in files]
    monkeypatch.setitem(mnist.DATA_SETS, name, (class_names, tuple(
        file._replace(size=len(content), md5=hashlib.md5(content).hexdigest(),
                      urls=('http://127.0.0.1:1/' + file.name,))
        for file, content in zip(files, contents))))


def measure_shortly(monkeypatch):
  """Has the input benchmark measure for a moment instead of seconds."""
  for name in ('_COLD_PASS_SECS', '_WARM_PASS_SECS', '_MAX_WARMUP_SECS', '_MIN_TIMED_SECS'):
    monkeypatch.setattr(measurement, name, 0.02)


def evaluated_steps(done):
  """Returns the steps that a run has evaluated, from its log."""
  return [int(line.rpartition(' ')[2].rstrip(')')) for line in done.err.splitlines()
          if line.startswith('evaluation: ')]


def check_last_lines(log):
  """Checks that the last lines of a mode name files that exist, and a command that can be typed."""
  rows = {}
  for line in reversed(log.splitlines()):
    if not line.startswith('  '):
      break
    rows[line[2:13].rstrip()] = line[14:]
  for name, text in rows.items():
    if name in ('report', 'model', 'predictions', 'export', 'data', 'audit', 'records', 'result',
                'table', 'evaluation', 'checkpoint'):
      assert os.path.exists(text + '.index' * (name == 'checkpoint')), log
  has_next = not re.search('the loss did not decrease|with the publication', log)
  assert 'next' in rows or not has_next, log
  program, *arguments = shlex.split(rows.get('next', 'xdg-open'))
  if program == 'python':
    assert arguments[:2] == ['-m', 'estimator_train']
    command_line.parse(arguments[2:])  # Raises an error if a flag is invalid.
  else:
    assert shutil.which(program) or program == 'xdg-open'


def act_before(monkeypatch, owner, name, act, at=1):
  """Has something happen just before the n-th call of a function.

  Returns:
    An iterator whose next value is the number of the next call.
  """
  function, number = getattr(owner, name), itertools.count(1)

  @functools.wraps(function)
  def call(*args, **kwargs):
    if next(number) == at:
      act()
    return function(*args, **kwargs)

  monkeypatch.setattr(owner, name, call)
  return number


def signal_before(monkeypatch, owner, name, signum, at=1):
  """Has this process get a signal just before the n-th call of a function."""
  return act_before(monkeypatch, owner, name, lambda: os.kill(os.getpid(), signum), at)
