"""Training over networks that are slow, lossy or interrupted, on hosts in network namespaces.

FAULTY_NETWORKS=all runs all combinations of faults, engines and numbers of hosts, which takes half
an hour, instead of a few. With `-s`, each test prints its row of the table of results.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
import virtual_network
from cluster_processes import HOROVOD
from test_lost_tasks import FLAGS, assert_undisturbed, weights

SECS = 400  # A deadline: the messages of the tasks show how they noticed the fault.
ENDLESS = 10**6
STEPS = 40
RUNS_ALL = os.environ.get('FAULTY_NETWORKS') == 'all'
NOT_ALL = 'FAULTY_NETWORKS=all runs all combinations, which takes half an hour'

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def combine(faults, few):
  """Returns the parameters (fault, engine, number of hosts); only `few` run by default."""
  parameters = []
  for fault in faults:
    for engine, marks in (('multi_worker_mirrored', ()), ('horovod', HOROVOD.marks)):
      for num_hosts in (2, 4):
        is_run = RUNS_ALL or (fault, engine, num_hosts) in few
        parameters.append(pytest.param(
            fault, engine, num_hosts, id='{}-{}-{}'.format(fault, engine, num_hosts),
            marks=[*marks, *([] if is_run else [pytest.mark.skip(reason=NOT_ALL)])]))
  return parameters


class Run:
  """A training run with a task on each host."""

  def __init__(self, cluster, network, engine, model_dir):
    self.network, self.hosts = network, range(len(network.namespaces))
    self._cluster, self._model_dir = cluster, model_dir
    self._engine = engine
    self.addresses = [network.address(host) for host in self.hosts]
    self.tasks = {}

  def start(self, steps, hosts=None, flags=()):
    """Starts the tasks of some hosts, or of all."""
    self._cluster.spec = {'worker': [address + ':2222' for address in self.addresses]}
    for host in self.hosts if hosts is None else hosts:
      self.tasks[host] = self._cluster.add('worker', host, FLAGS + [
          '--distribution_strategy=' + self._engine, '--model_dir={}'.format(self._model_dir),
          '--train_steps={}'.format(steps), *flags], prefix=self.network.prefix(host))

  def assert_finished(self):
    for task in self.tasks.values():
      assert task.code(SECS) == 0, task.log

  def assert_lost(self, hosts=None):
    """Asserts that the tasks end because another task is lost; returns the time until then."""
    began = time.monotonic()
    for host in self.hosts if hosts is None else hosts:
      assert self.tasks[host].code(SECS) == 138, self.tasks[host].log
      assert re.search(r'^lost worker \d: ', self.tasks[host].log, re.MULTILINE), (
          self.tasks[host].log)
    return time.monotonic() - began

  def resume_and_finish(self):
    """Starts all tasks again; returns the last step."""
    saved = int(weights(self._model_dir)['global_step'])
    assert saved > 0
    steps = saved - saved % 20 + 20
    self.start(steps)
    self.assert_finished()
    assert 'resuming from step {}'.format(saved) in self.tasks[0].log
    return steps


@pytest.fixture
def make_run(cluster, tmp_path):
  with contextlib.ExitStack() as networks:
    def make(engine, num_hosts):
      network = networks.enter_context(virtual_network.make_network(num_hosts))
      return Run(cluster, network, engine, tmp_path / 'model')

    yield make


@pytest.fixture
def finish(tmp_path):
  """Compares the weights with those of a single process, and prints a row of the table."""
  began = time.monotonic()

  def compare_and_print(fault, engine, num_hosts, steps, outcome):
    secs = time.monotonic() - began
    assert_undisturbed(tmp_path / 'model', tmp_path, steps, replicas=num_hosts)
    print('\n| {} | {} | {} | {} | {:.0f} s | equal |'.format(
        fault, engine, num_hosts, outcome, secs))

  return compare_and_print


CONDITIONS = {
    'no fault': {}, '1 ms': {'delay_secs': .001}, '10 ms': {'delay_secs': .01},
    '50 ms': {'delay_secs': .05}, '1 % loss': {'loss': .01},
    '100 Mbit/s': {'bytes_per_sec': 100e6 / 8}}


@pytest.mark.parametrize('fault, engine, num_hosts', combine(CONDITIONS, [
    ('50 ms', 'multi_worker_mirrored', 2), ('1 % loss', 'horovod', 2)]))
def test_a_bad_network_only_takes_time(make_run, finish, fault, engine, num_hosts):
  run = make_run(engine, num_hosts)
  for name, value in CONDITIONS[fault].items():
    setattr(run.network.switch, name, value)
  run.start(STEPS)
  run.assert_finished()
  assert run.network.switch.forwarded > 1000
  assert (run.network.switch.lost > 0) == (fault == '1 % loss')
  finish(fault, engine, num_hosts, STEPS, 'completed')


@contextlib.contextmanager
def slow_down(task):
  """Stops a process for four fifths of the time."""
  ended = threading.Event()

  def stop_and_continue():
    while task.process.poll() is None and not ended.wait(.05):
      task.signal(signal.SIGSTOP)
      time.sleep(.2)
      task.signal(signal.SIGCONT)

  thread = threading.Thread(target=stop_and_continue)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


@pytest.mark.parametrize('fault, engine, num_hosts', combine(
    ['5 s partition', 'slow host'], [('5 s partition', 'multi_worker_mirrored', 2)]))
def test_a_short_fault_only_takes_time(make_run, finish, fault, engine, num_hosts):
  run = make_run(engine, num_hosts)
  run.start(20 * STEPS, flags=['--peer_timeout_secs=30'])
  run.tasks[0].wait_for('^step 40/')
  last = num_hosts - 1
  if fault == 'slow host':
    with slow_down(run.tasks[last]):
      run.assert_finished()
  else:
    run.network.switch.separated = {last}
    time.sleep(5)
    run.network.switch.separated = frozenset()
    run.assert_finished()
    assert run.network.switch.lost > 0
  finish(fault, engine, num_hosts, 20 * STEPS, 'completed')


@pytest.mark.parametrize('fault, engine, num_hosts', combine(
    ['300 s partition', '20 s partition', 'vanished host'],
    [('20 s partition', 'multi_worker_mirrored', 4), ('vanished host', 'horovod', 2)]))
def test_a_long_fault_ends_all_tasks_in_time(make_run, finish, fault, engine, num_hosts):
  """FLAGS have --peer_timeout_secs=5."""
  run = make_run(engine, num_hosts)
  run.start(ENDLESS)
  run.tasks[0].wait_for('^step 40/')
  last = num_hosts - 1
  began = time.monotonic()
  run.network.switch.separated = {last}  # Neither packets nor a reset arrive from now on.
  if fault == 'vanished host':
    run.tasks[last].signal(signal.SIGKILL)
    secs = run.assert_lost(run.hosts[:-1])
    assert run.tasks[last].code() == -signal.SIGKILL
  else:
    secs = run.assert_lost()
    time.sleep(max(float(fault.split()[0]) - (time.monotonic() - began), 0))
  # The time of the timeout, and of a busy machine.
  assert secs < 60
  run.network.switch.separated = frozenset()
  steps = run.resume_and_finish()
  finish(fault, engine, num_hosts, steps, 'code 138 after {:.0f} s, resumed'.format(secs))


@pytest.mark.parametrize('fault, engine, num_hosts', combine(
    ['late chief'], [('late chief', 'multi_worker_mirrored', 2)]))
def test_a_late_chief_is_awaited(make_run, finish, fault, engine, num_hosts):
  run = make_run(engine, num_hosts)
  run.start(STEPS, run.hosts[1:])
  time.sleep(15)
  assert all(task.process.poll() is None for task in run.tasks.values())
  run.start(STEPS, [0])
  run.assert_finished()
  finish(fault, engine, num_hosts, STEPS, 'completed')


@pytest.mark.parametrize('fault, engine, num_hosts', combine(['changed address'], []))
def test_a_changed_address(make_run, finish, fault, engine, num_hosts):
  run = make_run(engine, num_hosts)
  run.start(ENDLESS)
  run.tasks[0].wait_for('^step 40/')
  last = num_hosts - 1
  run.network.set_address(last, '10.99.0.77')
  secs = run.assert_lost()
  run.addresses[last] = '10.99.0.77'
  steps = run.resume_and_finish()
  finish(fault, engine, num_hosts, steps, 'code 138 after {:.0f} s, resumed'.format(secs))


SKEWED_CLOCK = '''
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#define SKEW 3600
int clock_gettime(clockid_t clock, struct timespec *result) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  int code = next(clock, result);
  if (clock == CLOCK_REALTIME && !code) result->tv_sec += SKEW;
  return code;
}
int gettimeofday(struct timeval *restrict result, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  result->tv_sec = now.tv_sec;
  result->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
'''


@pytest.mark.parametrize('fault, engine, num_hosts', combine(
    ['clock skew'], [('clock skew', 'multi_worker_mirrored', 2)]))
def test_a_clock_that_is_an_hour_fast(make_run, finish, tmp_path, monkeypatch, fault, engine,
                                      num_hosts):
  if not shutil.which('gcc'):
    pytest.skip('a library with a skewed clock requires gcc')
  library = tmp_path / 'skewed.so'
  subprocess.run(['gcc', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(library), '-ldl'],
                 input=SKEWED_CLOCK.encode(), check=True)
  run = make_run(engine, num_hosts)
  run.start(STEPS, run.hosts[:-1])
  monkeypatch.setenv('LD_PRELOAD', str(library))
  skewed = subprocess.run(['date', '+%s'], stdout=subprocess.PIPE, check=True)
  assert int(skewed.stdout) - time.time() > 3000
  run.start(STEPS, run.hosts[-1:])
  monkeypatch.delenv('LD_PRELOAD')
  run.assert_finished()
  finish(fault, engine, num_hosts, STEPS, 'completed')
