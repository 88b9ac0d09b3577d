"""The scripts for Slurm and plain Docker, with stand-ins that write down what they are asked."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from estimator_train.settings import command_line

SECS = 60
SBATCH = ROOT / 'deploy' / 'slurm' / 'train.sbatch'
TWO_HOSTS = ROOT / 'deploy' / 'docker' / 'two_hosts.sh'

# What Slurm has on PATH. `srun` runs the command once a node, as Slurm would, and ends with the
# largest code.
SCONTROL = '''#!/usr/bin/env bash
echo "$*" >>"$RECORD.scontrol"
case "$*" in
"show hostnames $SLURM_JOB_NODELIST") [[ $HOSTNAMES ]] && printf '%s\\n' $HOSTNAMES ;;
"requeue $SLURM_JOB_ID") ;;
*) exit 1 ;;
esac
'''
# Prints the submitted command.
SQUEUE = '#!/usr/bin/env bash\necho "$COMMAND --a=flag"\n'
SRUN = '''#!/usr/bin/env bash
echo "$1 $2" >"$RECORD.srun"
shift 2
code=0 SLURM_PROCID=0
for _ in $HOSTNAMES; do
  export SLURM_PROCID
  "$@" || code=$(($? > code ? $? : code))
  SLURM_PROCID=$((SLURM_PROCID + 1))
done
exit "$code"
'''
RECORDER = '''#!{python}
import json, os, sys
with open(os.environ['RECORD'], 'a') as record:
  record.write(json.dumps([json.loads(os.environ.get('TF_CONFIG', 'null')), os.getcwd(),
                           sys.argv[1:]]) + '\\n')
if 'TF_CONFIG' in os.environ and 'CODES' in os.environ:
  index = json.loads(os.environ['TF_CONFIG'])['task']['index']
  sys.exit(int(os.environ['CODES'].split()[index]))
'''


class Host:
  """A PATH with stand-ins, and a checkout whose program is one."""

  def __init__(self, folder):
    self.bin, self.here, self._record = folder / 'bin', folder / 'check out', folder / 'record'
    for path in (self.bin, self.here):
      path.mkdir()
    for tool in ('bash', 'env', 'id', 'mkdir'):
      (self.bin / tool).symlink_to(shutil.which(tool))
    recorder = RECORDER.format(python=sys.executable)
    for path, text in ((self.bin / 'scontrol', SCONTROL), (self.bin / 'srun', SRUN),
                       (self.bin / 'squeue', SQUEUE),
                       (self.bin / 'docker', recorder), (self.here / 'run_train.sh', recorder)):
      path.write_text(text)
      path.chmod(0o755)

  def run(self, script, *arguments, **environment):
    return subprocess.run(
        [str(script), *arguments], cwd=str(self.here), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=SECS,
        env=dict(PATH=str(self.bin), RECORD=str(self._record), **environment))

  def run_job(self, *arguments, **environment):
    slurm = {'COMMAND': str(self.here / 'deploy' / 'slurm' / 'train.sbatch'),
             'SLURM_JOB_ID': '1234567', 'SLURM_JOB_NODELIST': 'node[1-3]',
             'HOSTNAMES': 'node1 node2 node3'}
    return self.run(SBATCH, *arguments, **dict(slurm, **environment))

  def calls(self):
    """Returns TF_CONFIG, the folder and the arguments of each start of a program."""
    return list(map(json.loads, self._record.read_text().splitlines()))

  def record(self, name):
    path = self._record.with_suffix('.' + name)
    return path.read_text() if path.exists() else None


@pytest.fixture
def host(tmp_path):
  return Host(tmp_path)


def test_slurm_gives_each_task_its_place(host):
  done = host.run_job('--model_dir=shared dir', '--train_steps=1')
  assert (done.returncode, done.stderr) == (0, '')
  set_up, *tasks = host.calls()
  assert set_up == [None, str(host.here), ['--help']]
  addresses = ['node{}:24567'.format(number) for number in (1, 2, 3)]
  arguments = ['--distribution_strategy=multi_worker_mirrored', '--model_dir=shared dir',
               '--train_steps=1']
  assert tasks == [
      [{'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}},
       str(host.here), arguments] for index in range(3)]
  assert command_line.parse(arguments).devices.distribution_strategy == 'multi_worker_mirrored'
  assert host.record('srun') == '--kill-on-bad-exit=0 --wait=3600\n'
  # It waits for the last task as long as the user allows.
  assert host.run_job('--x=1', MAX_FINISH_SECS='60', SLURM_NTASKS='3').returncode == 0
  assert host.record('srun') == '--kill-on-bad-exit=0 --wait=60\n'
  options = re.findall('^#SBATCH (.*?)(?: |$)', SBATCH.read_text(), re.MULTILINE)
  assert {'--ntasks-per-node=1', '--requeue', '--signal=TERM@120'} <= set(options)


@pytest.mark.parametrize('variables, code, message', [
    ({'SLURM_NTASKS': '6'}, 2, 'error: each node must have one task: 6 tasks on 3 nodes: call'),
    ({'COMMAND': '(null)'}, 2, 'error: the job must be submitted from its file in a checkout: (nu'),
    ({'HOSTNAMES': ''}, 1, '')])
def test_slurm_starts_no_task_of_a_wrong_job(host, variables, code, message):
  done = host.run_job('--x=1', **variables)
  assert done.returncode == code and done.stderr.startswith(message)
  assert len(done.stderr.splitlines()) <= 1 and host.record('srun') is None


@pytest.mark.parametrize('codes, count, code, again', [
    ('138 137 138', '9', 138, True), ('138 137 138', '10', 138, False), ('0 2 0', '0', 2, False),
    ('143 143 143', '0', 143, False), ('139 0 0', '0', 139, True)])
def test_slurm_queues_again_what_is_worth_it(host, codes, count, code, again):
  done = host.run_job('--x=1', CODES=codes, SLURM_RESTART_COUNT=count)
  assert done.returncode == code
  assert ('requeue 1234567\n' in host.record('scontrol')) == again
  assert ('requeueing job' in done.stderr) == again


def test_docker_on_two_hosts(host, tmp_path):
  model = tmp_path / 'shared' / 'model'
  for done in (
      host.run(TWO_HOSTS, '1', 'host-a,host-b', '--train_steps=1', '--labels=a b'),
      host.run(TWO_HOSTS, '2', 'a,b,c', PORT='3333', MODEL=str(model), IMAGE='mine:1', GPUS='')):
    assert (done.returncode, done.stderr) == (0, '')
  (config, _, arguments), (other_config, _, other_arguments) = host.calls()
  assert config == {'cluster': {'worker': ['host-a:2222', 'host-b:2222']},
                    'task': {'type': 'worker', 'index': 1}}
  at = arguments.index('estimator-train')
  assert arguments[at + 1:] == ['--distribution_strategy=multi_worker_mirrored',
                                '--train_steps=1', '--labels=a b']
  options = ' '.join(arguments[:at])
  for expected in ('run --rm --gpus all --network host --env TF_CONFIG ',
                   '--shm-size=1g --ulimit memlock=-1 --stop-timeout=120',
                   '--user {}:{}'.format(os.getuid(), os.getgid()),
                   '-v {0}/data:/data -v {0}/runs:/model'.format(host.here)):
    assert expected in options
  assert (host.here / 'data').is_dir() and (host.here / 'runs').is_dir() and model.is_dir()
  assert other_config['cluster'] == {'worker': ['a:3333', 'b:3333', 'c:3333']}
  assert '{}:/model'.format(model) in other_arguments and '--gpus' not in other_arguments
  assert other_arguments[-2:] == ['mine:1', '--distribution_strategy=multi_worker_mirrored']


def test_docker_wants_index_and_hosts(host):
  for arguments in ([], ['0'], ['--x', 'a,b']):
    done = host.run(TWO_HOSTS, *arguments)
    assert (done.returncode, done.stdout) == (2, '')
    assert re.match('error: the first arguments must be INDEX and HOST,HOST: .*\n$', done.stderr)
