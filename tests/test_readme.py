"""The README's commands parse, and what they name is there."""

import json
import re
import shlex

import pytest
from conftest import ROOT

from estimator_train import flags
from estimator_train.configs.workloads import WORKLOADS
from estimator_train.launcher import local_cluster, with_tensorboard

README = (ROOT / 'README.md').read_text(encoding='utf-8')
DEVELOPMENT = (ROOT / 'docs' / 'development.md').read_text(encoding='utf-8')
DOCKER_README = (ROOT / 'deploy' / 'docker' / 'README.md').read_text(encoding='utf-8')
COMMANDS = [line for block in re.findall(r'```bash\n(.*?)```', README + DOCKER_README + DEVELOPMENT,
                                            re.DOTALL)
            for line in block.splitlines()]
# What stands before the program's flags; in the image, relative paths are as in the checkout.
PROGRAM = re.compile(
    r'./run_train.sh|python -m estimator_train|docker run .* estimator-train(?= )|'
    r'docker compose -f deploy/docker/compose.yaml run --rm train(-cpu)?|'
    r'deploy/docker/two_hosts.sh \d \S+|sbatch --nodes=\d deploy/slurm/train.sbatch')


def test_opens_with_the_two_commands():
  assert COMMANDS[:2] == ['./run_train.sh', 'tests/run.sh']


@pytest.mark.parametrize('command', COMMANDS)
def test_command(command, monkeypatch):
  monkeypatch.chdir(str(ROOT))
  program = PROGRAM.match(command)
  if program:
    arguments = with_tensorboard.without_tensorboard(shlex.split(command[program.end():]))
    if '--local_workers' in command:
      arguments = local_cluster.own_flags(arguments)
    arguments = arguments or ['--flagfile=estimator_train/configs/quickstart.flags']
    assert flags.wants_help(arguments) or flags.parse(arguments)
    return
  script, *arguments = shlex.split(command)
  while '=' in script:  # A variable of its environment.
    script = arguments.pop(0)
  if script == 'mkdir':
    return
  if script == 'docker':
    files = {'build': 'Dockerfile', 'compose': 'deploy/docker/compose.yaml'}
    assert (ROOT / files[arguments[0]]).is_file()
    return
  if script == 'kubectl':
    script = arguments[arguments.index('-f') + 1]
  if script == '.venv/bin/python':
    script = arguments.pop(0)
  assert (ROOT / script).is_file()
  for argument in arguments:
    assert not argument.startswith('tests/') or (ROOT / argument).exists()


@pytest.mark.parametrize('flagfile', sorted((ROOT / 'estimator_train' / 'configs').glob('*.flags')),
                         ids=lambda path: path.name)
def test_flagfile_parses(flagfile):
  assert flags.parse(['--flagfile={}'.format(flagfile)]).model_dir


def test_tasks_on_several_machines_are_of_one_cluster():
  configs = [json.loads(config) for config in re.findall(r"TF_CONFIG='(.*)'", README)]
  first, second = configs
  assert first['cluster'] == second['cluster'] == {'worker': ['host-a:2222', 'host-b:2222']}
  assert [config['task'] for config in configs] == [
      {'type': 'worker', 'index': index} for index in range(2)]
  command, = re.findall(r'^both\$ ./run_train.sh (.*)$', README, re.MULTILINE)
  assert flags.parse(shlex.split(command)).distribution_strategy == 'multi_worker_mirrored'


def test_every_output_file_is_told():
  for name in ('flags.txt', 'labels.txt', 'throughput.json', 'evaluation.json'):
    assert '`{}`'.format(name) in README


@pytest.mark.parametrize('name', sorted(WORKLOADS))
def test_ledger_has_every_figure(name):
  """The tables are the command's own: their first columns are those of the workloads."""
  section = README.partition('<!-- ledger: begin -->')[2].partition('<!-- ledger: end -->')[0]
  table = section.partition('`{}` on '.format(name))[2].partition('\n`')[0]
  rows = [tuple(cell.strip() for cell in line.split('|')[1:4])
          for line in table.splitlines() if line.startswith('|')][2:]
  figures = [figure for part in WORKLOADS[name].parts for figure in part.figures]
  assert rows == [(figure.what, figure.published or '', figure.conditions)
                  for figure in figures + list(WORKLOADS[name].across)]
