"""deploy/slurm/train.sbatch under Slurm itself, on nodes in network namespaces."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import virtual_network
from cluster_processes import FLAGS
from conftest import ROOT, run_process, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

NODES = ('node1', 'node2', 'node3')
CONFIG = '''ClusterName=test
SlurmctldHost={host}(10.99.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmdTimeout=5
ReturnToService=2
NodeName=node[1-3] CPUs=4
PartitionName=all Nodes=ALL Default=YES
'''


class Slurm:
  """Slurm's daemons, which end with the test, and its commands, which are called on node1."""

  def __init__(self, network, folder):
    self._network, self._folder, self._daemons = network, folder, {}
    self._variables = {'SLURM_CONF': str(folder / 'slurm.conf'),
                       'PYTHONPATH': '{}:{}'.format(ROOT, ROOT / 'tests')}

  def __call__(self, *command, cwd='/'):
    """Returns what a command prints."""
    return run_process(*self._network.prefix(0), *command, env=self._variables, cwd=cwd,
                       timeout=60, stderr=subprocess.STDOUT).stdout.strip()

  def start(self):
    for folder in ('state', *NODES):
      (self._folder / folder).mkdir()
    (self._folder / 'slurm.conf').write_text(
        CONFIG.format(folder=self._folder, host=os.uname().nodename))
    (self._folder / 'cgroup.conf').write_text('CgroupPlugin=cgroup/v1\n')  # Nothing is mounted.
    self._start_daemon('slurmctld', 0, '-D')
    for node in NODES:
      self.start_node(node)

  def start_node(self, node):
    self._start_daemon(node, NODES.index(node), '-D', '-N', node)
    wait_until(lambda: self('sinfo', '-hN', '-n', node, '-o', '%T') in ('idle', 'mixed'), 60)

  def kill_node(self, node):
    """Kills all processes of a node: the daemons and the processes of the jobs."""
    namespace = self._network.namespaces[NODES.index(node)]
    for pid in subprocess.check_output(['ip', 'netns', 'pids', namespace]).split():
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)

  def _start_daemon(self, name, host, *arguments):
    with (self._folder / 'daemons.log').open('a') as log:
      self._daemons[name] = subprocess.Popen(
          [*self._network.prefix(host), 'slurmd' if name in NODES else name, *arguments],
          stdout=log, stderr=log, env=dict(os.environ, **self._variables))

  def close(self):
    for node in NODES:
      self.kill_node(node)
    for daemon in self._daemons.values():
      daemon.wait(60)


@pytest.fixture
def slurm(tmp_path):
  if not all(map(shutil.which, ('slurmctld', 'slurmd'))):
    pytest.skip('requires Slurm; scripts/install_ci_tools installs them for root')
  with virtual_network.make_network(len(NODES)) as network, contextlib.ExitStack() as stack:
    for host in range(len(NODES)):
      folder = Path('/etc/netns') / network.namespaces[host]  # `ip` mounts its files in /etc.
      folder.mkdir(parents=True)
      stack.callback(shutil.rmtree, str(folder))
      (folder / 'hosts').write_text('127.0.0.1 localhost\n' + ''.join(
          '{} {}\n'.format(*names) for names in zip(network.addresses, NODES)))
    slurm = Slurm(network, tmp_path)
    stack.callback(slurm.close)
    slurm.start()
    yield slurm


class Job:
  """An endless job with a task on each of some nodes, submitted outside the checkout."""

  def __init__(self, slurm, folder, *nodes):
    self._slurm, self._folder = slurm, folder
    folder.mkdir()
    self._id = slurm(
        'sbatch', '--parsable', '--output=log', '--signal=TERM@100',
        '--nodes={}'.format(len(nodes)), '--nodelist=' + ','.join(nodes),
        str(ROOT / 'deploy' / 'slurm' / 'train.sbatch'), *FLAGS, '--model=own_models:pauses',
        '--mode=train', '--model_dir=model', '--save_checkpoints_steps=10',
        '--train_steps=1000000', cwd=str(folder))

  def call(self, *command):
    """Calls a command of Slurm, which prints nothing, with the job as its last argument."""
    assert self._slurm(*command, self._id) == ''

  def update(self, setting):
    assert self._slurm('scontrol', 'update', 'JobId=' + self._id, setting) == ''

  def kill_task(self, index):
    for process in psutil.process_iter(['environ']):
      variables = process.info['environ'] or {}
      if (variables.get('SLURM_JOB_ID'), variables.get('SLURM_PROCID')) == (self._id, str(index)):
        process.kill()

  def shows(self, name):
    """Returns a field of `scontrol show job`."""
    return re.search(r'\b{}=(\S+)'.format(name),
                     self._slurm('scontrol', 'show', 'job', self._id)).group(1)

  def assert_ends(self, state, message='', exit_code='0:0'):
    """Waits for a state, and looks for a message in the log."""
    wait_until(lambda: time.sleep(.1) or self.shows('JobState') in (state, 'FAILED'))
    log = (self._folder / 'log').read_text()
    assert message in log and 'CLUSTER_KEY is not set' not in log, log
    assert (self.shows('JobState'), self.shows('ExitCode')) == (state, exit_code), log

  def wait_for_checkpoint(self, after=0):
    """Waits until the job has resumed at a step, if any, and saved another checkpoint."""
    wait_until(lambda: self.saved_step() > after)
    log = (self._folder / 'log').read_text()
    assert not after or 'resuming from step {},'.format(after) in log, log

  def saved_step(self):
    return max((int(path.stem.rpartition('-')[2])
                for path in self._folder.glob('model/model.ckpt-*.index')), default=0)

  def assert_requeued(self, message=''):
    """Waits until the job has been requeued, and resumes it."""
    self.assert_ends('PENDING', message)
    saved = self.saved_step()
    # Slurm waits for two minutes: but it does not start a requeued job within a second.
    self.update('StartTime=now+2')
    self.wait_for_checkpoint(saved)


def test_jobs_end_as_documented(slurm, tmp_path):
  """A job of two tasks loses a task and is cancelled; the job of one task has the other faults."""
  job = Job(slurm, tmp_path / 'two tasks', 'node1', 'node2')
  alone = Job(slurm, tmp_path / 'one task', 'node3')
  for each in (job, alone):
    each.wait_for_checkpoint()
  job.kill_task(1)
  slurm.kill_node('node3')
  job.assert_requeued('lost worker 1: its connection ended')
  alone.assert_ends('PENDING')
  slurm.start_node('node3')
  alone.assert_requeued()
  job.call('scancel')
  job.assert_ends('CANCELLED', 'stopped by SIGTERM at step ', '0:15')

  began = time.monotonic()
  alone.call('scontrol', 'requeue')
  alone.assert_requeued('stopped by SIGTERM at step ')
  assert alone.shows('Restarts') == '2'
  # Slurm compares the time with the limit, in minutes, twice a minute: it sends the signal then.
  alone.update('TimeLimit={}'.format(int(time.monotonic() - began + 40) // 60 + 1))
  alone.assert_ends('FAILED', 'stopped by SIGTERM at step ', '143:0')
