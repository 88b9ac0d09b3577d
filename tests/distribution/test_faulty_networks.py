"""Training over networks that are slow, lossy or interrupted, on hosts in network namespaces.

FAULTY_NETWORKS=all runs all combinations of faults, engines and numbers of hosts, which takes half
an hour, instead of a few. With `-s`, each run prints its row of the table of results.
"""

import os
import re
import signal
import time

import pytest
import virtual_network
from cluster_processes import requires_horovod
from test_lost_tasks import ENDLESS, assert_undisturbed, step_of, train

STEPS = 40
MIRRORED = 'multi_worker_mirrored'
# Changes of the network, during which training only takes longer.
CONDITIONS = {
    'no fault': {}, '10 ms': {'delay_secs': .01}, '50 ms': {'delay_secs': .05},
    '1 % loss': {'loss': .01}}
OTHERS = ['5 s partition', '20 s partition', 'vanished host', 'late chief']
FEW = [('50 ms', MIRRORED, 2), ('1 % loss', 'horovod', 2), ('5 s partition', MIRRORED, 2),
       ('10 s partition', MIRRORED, 3), ('vanished host', 'horovod', 2),
       ('late chief', MIRRORED, 2), ('partition of workers', MIRRORED, 3)]
ALL = [(fault, engine, num_hosts) for fault in [*CONDITIONS, *OTHERS]
       for engine in (MIRRORED, 'horovod') for num_hosts in (2, 4)] + [
           ('partition of workers', engine, 3) for engine in (MIRRORED, 'horovod')]
COMBINATIONS = [
    pytest.param(*each, marks=requires_horovod if 'horovod' in each else ())
    for each in (ALL if os.environ.get('FAULTY_NETWORKS') == 'all' else FEW)]


class Run:
  """A training run with a task on each host; only the last host meets a fault."""

  def __init__(self, cluster, network, engine, model_dir):
    self.network, self._cluster, self._engine, self._model_dir = network, cluster, engine, model_dir
    self.hosts, self.tasks = range(len(network.addresses)), {}

  def start(self, steps, hosts=None, flags=()):
    """Starts the tasks of some hosts, or of all."""
    self._cluster.spec = {'worker': [address + ':2222' for address in self.network.addresses]}
    for host in hosts or self.hosts:
      self.tasks[host] = self._cluster.add('worker', host, train(
          self._model_dir, steps, '--distribution_strategy=' + self._engine, *flags),
                                           self.network.namespaces[host])

  def end_and_resume(self, survivors, partition_secs=0):
    """Asserts that tasks end because one is lost, and resumes; returns the steps and seconds."""
    began = time.monotonic()
    for host in survivors:
      assert self.tasks[host].code() == 138, self.tasks[host].log
      assert re.search(r'^lost worker \d: |no step finished for 10 s', self.tasks[host].log,
                       re.MULTILINE), self.tasks[host].log
    secs = time.monotonic() - began
    assert secs < 60  # The flags have --peer_timeout_secs=5; and a busy machine.
    time.sleep(max(partition_secs - secs, 0))
    self.network.switch.separated = self.network.switch.cut = frozenset()
    saved = step_of(self._model_dir)
    steps = saved - saved % 20 + 20
    self.start(steps)
    self.tasks[0].wait_for('^resuming from step {},'.format(saved))
    assert saved > 0
    return steps, secs


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize('fault, engine, num_hosts', COMBINATIONS)
def test_training_completes_or_ends_in_time_and_resumes(cluster, tmp_path, fault, engine,
                                                        num_hosts):
  began, steps, lost_secs = time.monotonic(), STEPS, None
  with virtual_network.make_network(num_hosts) as network:
    run, switch = Run(cluster, network, engine, tmp_path / 'model'), network.switch
    last = num_hosts - 1
    if fault in CONDITIONS:
      vars(switch).update(CONDITIONS[fault])
      run.start(STEPS)
    elif fault == 'late chief':
      run.start(STEPS, run.hosts[1:])
      time.sleep(15)
      assert all(task.process.poll() is None for task in run.tasks.values())
      run.start(STEPS, [0])
    elif fault == '5 s partition':
      steps = 10 * STEPS
      run.start(steps, flags=['--peer_timeout_secs=30'])
      run.tasks[0].wait_for('^step 40/')
      switch.separated = {last}  # Neither packets nor a reset arrive.
      time.sleep(5)
      switch.separated = frozenset()
    else:
      run.start(ENDLESS, flags=['--step_timeout_secs=10'] if fault.endswith('workers') else ())
      run.tasks[0].wait_for('^step 40/')
      if fault == 'partition of workers':  # The chief reaches both, and they reach the chief.
        switch.cut = {1, 2}
      else:
        switch.separated = {last}
      if fault == 'vanished host':
        run.tasks[last].signal(signal.SIGKILL)
      steps, lost_secs = run.end_and_resume(
          run.hosts[:-1] if fault == 'vanished host' else run.hosts,
          float(fault.split()[0]) if fault.endswith(' s partition') else 0.)
    for task in run.tasks.values():
      assert task.code() == 0, task.log
    assert switch.forwarded > 1000
    assert (switch.lost > 0) == fault.endswith(
        ('loss', 'partition', 'workers', 'vanished host'))
  secs = time.monotonic() - began
  assert_undisturbed(tmp_path / 'model', steps, replicas=num_hosts)
  print('\n| {} | {} | {} | {} | {:.0f} s | equal |'.format(
      fault, engine, num_hosts, 'completed' if lost_secs is None
      else 'code 138 after {:.0f} s, resumed'.format(lost_secs), secs))
