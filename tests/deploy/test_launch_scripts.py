"""The scripts for Slurm and plain Docker, with stand-ins that record how they are called."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, run_process

from estimator_train.settings import command_line

SBATCH = ROOT / 'deploy' / 'slurm' / 'train.sbatch'
TWO_HOSTS = ROOT / 'deploy' / 'docker' / 'two_hosts.sh'
STRATEGY = '--distribution_strategy=multi_worker_mirrored'

# Records its calls by any name, and does what Slurm does: `squeue` prints the submitted command,
# `srun` runs a command once a node, and ends with the largest code.
STAND_IN = '''#!{python}
import json, os, subprocess, sys
name, arguments, environ = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ
config = json.loads(environ.get('TF_CONFIG', 'null'))
with open(environ['RECORD'], 'a') as record:
  record.write(json.dumps([name, config, os.getcwd(), arguments]) + '\\n')
if name == 'squeue':
  print(environ['COMMAND'] + ' --a=flag')
elif name == 'srun':
  sys.exit(max(subprocess.call(arguments[2:], env=dict(environ, SLURM_PROCID=str(index)))
               for index in range(len(environ['HOSTNAMES'].split()))))
elif arguments[:2] == ['show', 'hostnames']:
  print(environ['HOSTNAMES'].replace(' ', '\\n'))
  sys.exit(not environ['HOSTNAMES'])
elif config and 'CODES' in environ:
  sys.exit(int(environ['CODES'].split()[config['task']['index']]))
'''


class Host:
  """A PATH with stand-ins, and a checkout whose program is one."""

  def __init__(self, folder):
    self._bin, self.here, self._record = folder / 'bin', folder / 'check out', folder / 'record'
    self._bin.mkdir()
    self.here.mkdir()
    for tool in ('bash', 'env', 'id', 'mkdir'):
      (self._bin / tool).symlink_to(shutil.which(tool))
    for path in (*map(self._bin.joinpath, ('scontrol', 'srun', 'squeue', 'docker')),
                 self.here / 'run_train.sh'):
      path.write_text(STAND_IN.format(python=sys.executable))
      path.chmod(0o755)

  def run(self, script, *arguments, **environment):
    variables = {'PATH': str(self._bin), 'RECORD': str(self._record),
                 'COMMAND': str(self.here / 'deploy' / 'slurm' / 'train.sbatch'),
                 'SLURM_JOB_ID': '1234567', 'SLURM_JOB_NODELIST': 'node[1-3]',
                 'HOSTNAMES': 'node1 node2 node3', **environment}
    return run_process('env', '-i', *map('='.join, variables.items()), script, *arguments,
                       cwd=self.here, stdin=subprocess.DEVNULL)

  def calls(self, name):
    """Returns TF_CONFIG, the folder and the arguments of each call of a command."""
    calls = map(json.loads, self._record.read_text().splitlines())
    return [call for called, *call in calls if called == name]


@pytest.fixture
def host(tmp_path):
  return Host(tmp_path)


def tf_config(index, *addresses):
  return {'cluster': {'worker': list(addresses)}, 'task': {'type': 'worker', 'index': index}}


def test_slurm_gives_each_task_its_place(host):
  flags = ['--model_dir=shared dir', '--train_steps=1']
  for variables, wait in (({}, '--wait=3600'),
                          # It waits for the last task as long as the user allows.
                          ({'MAX_FINISH_SECS': '60', 'SLURM_NTASKS': '3'}, '--wait=60')):
    done = host.run(SBATCH, *flags, **variables)
    assert (done.returncode, done.stderr) == (0, '')
    assert host.calls('srun')[-1][-1][:2] == ['--kill-on-bad-exit=0', wait]
  addresses = ['node{}:24567'.format(number) for number in (1, 2, 3)]
  assert host.calls('run_train.sh')[:4] == [[None, str(host.here), ['--help']], *(
      [tf_config(index, *addresses), str(host.here), [STRATEGY, *flags]] for index in range(3))]
  settings = command_line.parse([STRATEGY, *flags])
  assert settings.devices.distribution_strategy == 'multi_worker_mirrored'
  assert host.calls('scontrol')[0][-1] == ['show', 'hostnames', 'node[1-3]']
  options = re.findall('^#SBATCH (.*?)(?: |$)', SBATCH.read_text(), re.MULTILINE)
  assert {'--ntasks-per-node=1', '--requeue', '--signal=TERM@120'} <= set(options)


@pytest.mark.parametrize('variables, code, message', [
    ({'SLURM_NTASKS': '6'}, 2, 'error: each node must have one task: 6 tasks on 3 nodes: call'),
    ({'COMMAND': '(null)'}, 2, 'error: the job must be submitted from its file in a checkout: (nu'),
    ({'HOSTNAMES': ''}, 1, '')])
def test_slurm_starts_no_task_of_a_wrong_job(host, variables, code, message):
  done = host.run(SBATCH, '--x=1', **variables)
  assert done.returncode == code and done.stderr.startswith(message)
  assert len(done.stderr.splitlines()) <= 1 and not host.calls('srun')


@pytest.mark.parametrize('codes, count, code, again', [
    ('138 137 138', '9', 138, True), ('138 137 138', '10', 138, False), ('0 2 0', '0', 2, False),
    ('138 2 138', '0', 2, False), ('137 138 3', '0', 3, False), ('1 192 0', '0', 1, False),
    ('143 143 143', '0', 143, False), ('139 0 0', '0', 139, True)])
def test_slurm_queues_again_what_is_worth_it(host, codes, count, code, again):
  done = host.run(SBATCH, '--x=1', CODES=codes, SLURM_RESTART_COUNT=count)
  assert done.returncode == code and ('requeueing job 1234567' in done.stderr) == again
  assert [call[-1] for call in host.calls('scontrol')[1:]] == [['requeue', '1234567']] * again


def test_docker_on_two_hosts(host, tmp_path):
  here, model = host.here, tmp_path / 'shared' / 'model'
  for done in (
      host.run(TWO_HOSTS, '1', 'host-a,host-b', '--train_steps=1', '--labels=a b'),
      host.run(TWO_HOSTS, '2', 'a,b,c', PORT='3333', MODEL=str(model), IMAGE='mine:1', GPUS='')):
    assert (done.returncode, done.stderr) == (0, '')
  options = ('--network host --env TF_CONFIG --shm-size=1g --ulimit memlock=-1 --stop-timeout=120 '
             '--user {}:{}'.format(os.getuid(), os.getgid())).split()
  data = '{}/data:/data'.format(here)
  assert host.calls('docker') == [
      [tf_config(1, 'host-a:2222', 'host-b:2222'), str(here),
       ['run', '--rm', '--gpus', 'all', *options, '-v', data, '-v', '{}/runs:/model'.format(here),
        'estimator-train', STRATEGY, '--train_steps=1', '--labels=a b']],
      [tf_config(2, 'a:3333', 'b:3333', 'c:3333'), str(here),
       ['run', '--rm', *options, '-v', data, '-v', '{}:/model'.format(model), 'mine:1', STRATEGY]]]
  assert all(map(os.path.isdir, map(str, (here / 'data', here / 'runs', model))))


@pytest.mark.parametrize('arguments', [[], ['0'], ['--x', 'a,b']])
def test_docker_wants_index_and_hosts(host, arguments):
  done = host.run(TWO_HOSTS, *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert re.match('error: the first arguments must be INDEX and HOST,HOST: .*\n$', done.stderr)
