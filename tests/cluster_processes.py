"""Real processes of a cluster on this machine: started, watched up to a deadline, and ended."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import ROOT

DEADLINE_SECS = 120
requires_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None,
    reason='Horovod is not installed; scripts/install_horovod installs it')
HOROVOD = pytest.param('horovod', marks=requires_horovod)
SYNCHRONOUS_STRATEGIES = ('multi_worker_mirrored', HOROVOD)


def free_addresses(count, host='127.0.0.1'):
  """Returns HOST:PORT of ports that nobody has, asked from the system all at once."""
  sockets = [socket.socket() for _ in range(count)]
  try:
    for one in sockets:
      one.bind((host, 0))
    return ['{}:{}'.format(host, one.getsockname()[1]) for one in sockets]
  finally:
    for one in sockets:
      one.close()


class Task:
  """One process of a cluster."""

  def __init__(self, kind, index, cluster, arguments, folder, prefix=(), started=0):
    self.name = kind if kind in ('chief', 'evaluator') else '{} {}'.format(kind, index)
    stem = '{}-{}-{}'.format(kind, index, started)
    self.log_path = folder / (stem + '.log')
    self.out_path = folder / (stem + '.out')
    environment = dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'), TF_CONFIG=(
        json.dumps({'cluster': cluster, 'task': {'type': kind, 'index': index}})))
    with self.log_path.open('w') as log, self.out_path.open('w') as out:
      self.process = subprocess.Popen(
          list(prefix) + [sys.executable, '-m', 'estimator_train'] + list(arguments),
          cwd=str(ROOT / 'tests'), stdout=out, stderr=log, env=environment)

  @property
  def log(self):
    return self.log_path.read_text()

  @property
  def result(self):
    return json.loads(self.out_path.read_text().splitlines()[-1])

  def wait_for(self, pattern, secs=DEADLINE_SECS):
    """Waits until the log has a line that matches, and returns the match."""
    give_up = time.monotonic() + secs
    while time.monotonic() < give_up:
      match = re.search(pattern, self.log, re.MULTILINE)
      if match:
        return match
      assert self.process.poll() is None, '{} has ended: {}'.format(self.name, self.log)
      time.sleep(.02)
    raise AssertionError('no {!r} in the log of {}: {}'.format(pattern, self.name, self.log))

  def code(self, secs=DEADLINE_SECS):
    """Waits for the end, and returns the exit code."""
    try:
      return self.process.wait(secs)
    except subprocess.TimeoutExpired:
      raise AssertionError('{} still runs: {}'.format(self.name, self.log)) from None

  def signal(self, signum):
    self.process.send_signal(signum)

  def end(self):
    if self.process.poll() is None:
      self.process.send_signal(signal.SIGCONT)
      self.process.kill()
    self.process.wait()


class Cluster:
  """Starts all tasks of a cluster, again and again."""

  def __init__(self, folder):
    self.folder = folder
    self.tasks = []
    self._starts = 0

  def start(self, arguments, workers=0, chief=0, ps=0, per_task=None, only=None):
    """Starts the tasks with new ports.

    Args:
      arguments: the flags of all.
      workers, chief, ps: how many of each.
      per_task: further flags by the task's name.
      only: the names of the tasks to start; None: all.

    Returns:
      The tasks by their names.
    """
    counts = {'chief': chief, 'worker': workers, 'ps': ps}
    addresses = free_addresses(sum(counts.values()))
    self.spec = {}
    for kind, count in counts.items():
      if count:
        self.spec[kind], addresses = addresses[:count], addresses[count:]
    self._starts += 1
    started = {}
    for kind, hosts in self.spec.items():
      for index in range(len(hosts)):
        name = kind if kind == 'chief' else '{} {}'.format(kind, index)
        if only is None or name in only:
          started[name] = self.add(kind, index, list(arguments) + (per_task or {}).get(name, []))
    return started

  def add(self, kind, index, arguments, prefix=()):
    """Starts one task of the cluster that was started last, by another command perhaps."""
    task = Task(kind, index, self.spec, arguments, self.folder, prefix, len(self.tasks))
    self.tasks.append(task)
    return task

  def end(self):
    for task in self.tasks:
      task.end()
