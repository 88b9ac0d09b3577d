"""Real processes of a cluster on this machine: started, watched up to a deadline, and ended."""

import contextlib
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
from program_server import ServedProcess

DEADLINE_SECS = 300  # What the tasks print shows how they noticed a fault.
FLAGS = ['--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=sgd',
         '--learning_rate=0.05', '--batch_size=24', '--throughput_warmup_steps=5',
         '--log_every_steps=5', '--noreport_page']
requires_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None,
    reason='Horovod is not installed; scripts/install_horovod installs it')


def free_addresses(count):
  """Returns HOST:PORT of ports that nobody has, asked from the system all at once."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for each in sockets:
      each.bind(('127.0.0.1', 0))
    return ['127.0.0.1:{}'.format(each.getsockname()[1]) for each in sockets]


class Task:
  """One process of a cluster: a copy of the server's where it runs Python, else a new one."""

  def __init__(self, command, log_path, namespace=None, **variables):
    self.log_path, self.out_path = log_path, log_path.with_suffix('.out')
    environment = dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'), **variables)
    folder, (program, *arguments) = str(ROOT / 'tests'), command
    with self.log_path.open('w') as log, self.out_path.open('w') as out:
      if program == sys.executable:
        self.process = ServedProcess(arguments, folder, environment, (out.name, log.name),
                                     namespace)
        return
      self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=log,
                                      env=environment, start_new_session=True)

  @property
  def log(self):
    return self.log_path.read_text()

  @property
  def result(self):
    return json.loads(self.out_path.read_text().splitlines()[-1])

  @property
  def output(self):
    return self.log + self.out_path.read_text()

  def wait_for(self, pattern):
    """Waits until the output has a line that matches."""
    give_up = time.monotonic() + DEADLINE_SECS
    while not re.search(pattern, self.output, re.MULTILINE):
      assert self.process.poll() is None and time.monotonic() < give_up, self.output
      time.sleep(.02)

  def code(self):
    """Waits for the end, and returns the exit code."""
    try:
      return self.process.wait(DEADLINE_SECS)
    except subprocess.TimeoutExpired:
      raise AssertionError('it still runs: ' + self.log) from None

  def signal(self, signum):
    self.process.send_signal(signum)

  def end(self):
    if self.process.poll() is None:
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()


class Cluster:
  """Starts all tasks of a cluster, again and again."""

  def __init__(self, folder):
    self.folder, self.tasks, self.spec = folder, [], {}

  def start(self, arguments, per_task=None, program=('-m', 'estimator_train'), **counts):
    """Starts the tasks with new ports.

    Args:
      arguments: the flags of all.
      per_task: further flags by the task's name.
      program: what Python runs.
      counts: how many tasks there are of each type.

    Returns:
      The tasks by their names.
    """
    addresses = free_addresses(sum(counts.values()))
    self.spec = {kind: [addresses.pop() for _ in range(count)] for kind, count in counts.items()}
    names = [(kind, index) for kind, count in counts.items() for index in range(count)]
    return {'{} {}'.format(*name): self.add(
        *name, [*arguments, *(per_task or {}).get('{} {}'.format(*name), ())], program=program)
            for name in names}

  def run(self, arguments, **options):
    """Starts the tasks, all of which must succeed; see `start`."""
    tasks = self.start(arguments, **options)
    for task in tasks.values():
      assert task.code() == 0, task.log
    return tasks

  def add(self, kind, index, arguments, namespace=None, program=('-m', 'estimator_train')):
    """Starts one task of the cluster that was started last."""
    config = {'cluster': self.spec, 'task': {'type': kind, 'index': index}}
    path = self.folder / '{}-{}-{}.log'.format(kind, index, len(self.tasks))
    self.tasks.append(Task([sys.executable, *program, *arguments], path, namespace,
                           TF_CONFIG=json.dumps(config)))
    return self.tasks[-1]

  def end(self):
    for task in self.tasks:
      task.end()
