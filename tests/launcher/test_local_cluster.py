"""The command line of a local cluster, what its tasks are given, and where they write."""

import os
import sys
from unittest import mock

import pytest

from estimator_train.launcher import local_cluster
from estimator_train.run_dir import RunDir
from estimator_train.settings import command_line


@pytest.mark.parametrize('arguments, counts, strategy', [
    (['-local_workers', '3'], {'worker': 3}, 'multi_worker_mirrored'),
    (['--local_workers=2', '--local_ps=2'], {'chief': 1, 'worker': 1, 'ps': 2},
     'parameter_server')])
def test_each_task_knows_the_cluster_and_its_place(launch, arguments, counts, strategy):
  code, _, err = launch.run(*arguments, '--data_dir=c d')
  assert code == 0, err
  tasks = [(kind, index) for kind, count in counts.items() for index in range(count)]
  cluster = launch.started('{} {}'.format(*tasks[0]))['cluster']
  assert {kind: len(addresses) for kind, addresses in cluster.items()} == counts
  addresses = set(sum(cluster.values(), []))
  assert len(addresses) == len(tasks) and all(each.startswith('127.0.0.1:') for each in addresses)
  for kind, index in tasks:
    assert launch.started('{} {}'.format(kind, index)) == {
        'cluster': cluster, 'task': {'type': kind, 'index': index}, 'pid': mock.ANY,
        # What the user gives comes later, and wins.
        'argv': ['--distribution_strategy=' + strategy, '--model_dir=model', '--train_steps=1',
                 '--data_dir=c d']}


@pytest.mark.parametrize('given', [None, 'ours'])
def test_the_tasks_have_a_key_that_others_do_not_know(launch, monkeypatch, given):
  monkeypatch.delenv('ESTIMATOR_TRAIN_CLUSTER_KEY', raising=False)
  if given:
    monkeypatch.setenv('ESTIMATOR_TRAIN_CLUSTER_KEY', given)
  shows = 'print(os.environ["ESTIMATOR_TRAIN_CLUSTER_KEY"])'
  keys = set()
  for _ in range(2):
    code, out, _ = launch.run('--local_workers=2', worker_0=shows, worker_1=shows)
    assert code == 0 and launch.log('worker-1.log').endswith(out)
    keys.add(out.strip())
  assert keys == {given} if given else len(min(keys)) == 64 and len(keys) == 2


@pytest.mark.parametrize('cores, gpus, visible, expected', [
    (0, 0, '0,1', [((), None), ((), None)]), (2, 0, None, [((3, 5), None), ((6, 7), None)]),
    (0, 2, None, [((), '0,1'), ((), '2,3')]), (1, 1, '5,GPU-a,7', [((3,), '5'), ((5,), 'GPU-a')])])
def test_what_each_task_has_of_the_machine(monkeypatch, cores, gpus, visible, expected):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {7, 5, 3, 6})
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  if visible is not None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  assert local_cluster._assign_resources(['worker 0', 'worker 1'], cores, gpus) == expected


@pytest.mark.parametrize('arguments, message', [
    (['--local_ps=1000'], 'argument --local_ps/-local_ps: 1000: give a whole number from 0 to 999'),
    (['--local_workers=2', '--no_such_flag', '--model_dir=x'], 'unknown flag: --no_such_flag: '),
    (['--local_ps=2'], 'a local cluster needs a number of workers: '),
    (['--model_dir=x', '--local_workers'], 'the flags cannot be read: '),
    (['--local_workers=2', '--train_steps=1', '--model_dir=/dev/null/x'], ' cannot be written to:'),
    (['--local_workers=2', '--mode=doctor'], 'can only train: --local_workers --mode=doctor'),
    (['--tensorboard', '--mode=doctor'], 'be started with training: --tensorboard --mode=doctor: '),
    (['--local_workers=2', '--local_cores=2'], 'cores: --local_cores=2 for 2 tasks on 3 cores: gi'),
    (['--local_workers=2', '--local_gpus=1', '0,-1'],
     'for 2 tasks on 1 GPUs (CUDA_VISIBLE_DEVICES=0,-1): give fewer')])
def test_wrong_values(arguments, message, capsys, monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1, 2})
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', arguments[-1])
  assert local_cluster.main(arguments) == 2
  out, err = capsys.readouterr()
  assert out == '' and err.count('\n') == 1 and err.startswith('error: ') and message in err


def test_leader_is_in_front_and_the_others_have_logs(launch):
  prints = 'print({0!r}); print({0!r} + " too", file=sys.stderr)'
  for _ in range(2):
    assert launch.run('--local_workers=2', worker_0=prints.format('{"result": 1}'),
                      worker_1=prints.format('other')) == (
        0, '{"result": 1}\n', 'starting tasks (2 worker): the output of worker 0 follows, the '
        'others log to model/logs\n{"result": 1} too\n')
  # As the run is resumed, its log is continued.
  assert sorted(launch.log('worker-1.log').splitlines()) == ['other'] * 2 + ['other too'] * 2
  assert os.listdir(str(launch.folder / 'model' / 'logs')) == ['worker-1.log']


def test_leader_has_the_terminal_and_its_place(launch, monkeypatch):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
  ours, theirs = map(os.fdopen, os.openpty())
  with ours, theirs:
    code, out, _ = launch.run(
        '--local_workers=1', '--local_cores=1', '--local_gpus=1', stderr=theirs,
        worker_0='print(os.environ["CUDA_VISIBLE_DEVICES"], os.sched_getaffinity(0), '
                 'os.getpgid(0) == os.getpid()); sys.exit(4 * sys.stderr.isatty())')
  # In its own process group, so that Ctrl-C does not reach it twice.
  assert (code, out) == (4, '3 {{{}}} True\n'.format(min(os.sched_getaffinity(0))))


def test_help_is_the_programs(monkeypatch):
  commands = []
  monkeypatch.setattr(os, 'execve', lambda *command: commands.append(command[:2]) or sys.exit(0))
  with pytest.raises(SystemExit):
    local_cluster.main(['--local_workers=2', '--help'], ['some python', 'program'])
  assert commands == [('some python', ['some python', 'program', '--distribution_strategy='
                                       'multi_worker_mirrored', '--help'])]


def test_the_folder_of_a_run_is_chosen_once_for_all_tasks(monkeypatch, tmp_path, capsys):
  monkeypatch.chdir(str(tmp_path))
  commands = []
  monkeypatch.setattr(local_cluster.Supervisor, 'run', lambda self, max_restarts: 0)
  monkeypatch.setattr(local_cluster.Supervisor, '__init__', lambda self, tasks, command, *others: (
      commands.append((command, others[0]))))
  for steps in (1, 2):
    assert local_cluster.main(['--local_workers=2', '--train_steps={}'.format(steps)], ['it']) == 0
    if steps == 1:  # Its tasks record their flags.
      arguments, log_dir = commands[0]
      settings = command_line.parse(arguments[1:])
      RunDir(settings.run.required_model_dir).record_flags(settings)
  name = 'runs/fashion_mnist_sample-fashion_cnn'
  assert [(command[-1], log_dir) for command, log_dir in commands] == [
      ('--model_dir={}'.format(folder), folder + '/logs') for folder in (name, name + '-2')]
  assert capsys.readouterr().err.startswith(
      'new run in {0}\nnew run in {0}-2, because'.format(name))
