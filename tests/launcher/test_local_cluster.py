"""The command line of a local cluster, what its tasks are given, and where they write."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from launches import LAUNCHER, LONG, SECS

from estimator_train.launcher import local_cluster, local_tasks
from estimator_train.process import child_process


@pytest.mark.parametrize('arguments, counts, strategy', [
    (['--local_workers=1'], {'worker': 1}, 'multi_worker_mirrored'),
    (['-local_workers', '3'], {'worker': 3}, 'multi_worker_mirrored'),
    (['--local_workers=2', '--local_ps=2'], {'chief': 1, 'worker': 1, 'ps': 2},
     'parameter_server'),
    (['--local_ps=1', '--local_workers=1'], {'chief': 1, 'ps': 1}, 'parameter_server'),
])
def test_each_task_knows_the_cluster_and_its_place(launch, arguments, counts, strategy):
  code, _, err = launch.run(*(arguments + ['--data_dir=c d']))
  assert code == 0, err
  tasks = [(kind, index) for kind, count in counts.items() for index in range(count)]
  configs = [launch.started('{} {}'.format(*task)) for task in tasks]
  assert [(config['task']['type'], config['task']['index']) for config in configs] == tasks
  cluster, = {json.dumps(config['cluster'], sort_keys=True) for config in configs}
  addresses = json.loads(cluster)
  assert {kind: len(listed) for kind, listed in addresses.items()} == counts
  listed = sum(addresses.values(), [])
  assert len(set(listed)) == len(listed)
  assert all(address.startswith('127.0.0.1:') for address in listed)
  # What the user gives comes later, and wins.
  argv = ['--distribution_strategy=' + strategy, '--model_dir=model', '--train_steps=1',
          '--data_dir=c d']
  assert [config['argv'] for config in configs] == [argv] * len(tasks)


@pytest.mark.parametrize('arguments, visible, cores, gpus', [
    ([], '0,1', [(), ()], [None, None]),
    (['--local_cores=2'], None, [(3, 5), (6, 7)], [None, None]),
    (['--local_gpus=2'], None, [(), ()], ['0,1', '2,3']),
    (['--local_cores=1', '--local_gpus=1'], '5,GPU-a,7', [(3,), (5,)], ['5', 'GPU-a']),
])
def test_what_each_task_has_of_the_machine(monkeypatch, arguments, visible, cores, gpus):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {7, 5, 3, 6, 8})
  if visible is None:
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  else:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  asked = local_cluster._parse_arguments(['--local_workers=2', '--seed=3'] + arguments)
  assert asked.program_arguments == ['--seed=3']
  assert [resources.cores for resources in asked.resources] == cores
  assert [resources.gpus for resources in asked.resources] == gpus


def test_more_cores_than_there_are(monkeypatch, capsys):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1, 2})
  assert local_cluster.main(['--local_workers=2', '--local_cores=2', '--model_dir=x']) == 2
  assert capsys.readouterr().err == (
      'error: there are too few cores: --local_cores=2 for 2 tasks on 3 cores: give fewer per '
      'task, or leave the flag out to share the cores\n')


@pytest.mark.parametrize('visible, gpus_per_task, num_gpus', [
    ('0', 1, 1), ('5,GPU-a,7', 2, 3), ('0,', 1, 1), ('', 1, 0), ('-1', 1, 0)])
def test_more_gpus_than_there_are(monkeypatch, capsys, visible, gpus_per_task, num_gpus):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  assert local_cluster.main(['--local_workers=2', '--local_gpus={}'.format(gpus_per_task),
                             '--model_dir=x']) == 2
  assert capsys.readouterr().err == (
      'error: there are too few GPUs: --local_gpus={} for 2 tasks on {} GPUs '
      '(CUDA_VISIBLE_DEVICES={}): give fewer per task, or leave the flag out to share the '
      'GPUs\n'.format(gpus_per_task, num_gpus, visible))


def test_tasks_are_in_their_places(launch):
  tell = 'print(sorted(os.sched_getaffinity(0)), os.environ["CUDA_VISIBLE_DEVICES"])'
  core = min(os.sched_getaffinity(0))
  code, out, err = launch.run('--local_workers=1', '--local_cores=1', '--local_gpus=1',
                              worker_0=tell)
  assert (code, out) == (0, '[{}] 0\n'.format(core)), err


def test_ports_can_be_had_and_are_kept_from_others():
  with local_tasks._reserve_ports(3) as ports:
    assert len(set(ports)) == 3
    for port in ports:
      with local_tasks.socket.socket() as listener:
        with pytest.raises(OSError):
          listener.bind(('', port))
        listener.setsockopt(local_tasks.socket.SOL_SOCKET, local_tasks.socket.SO_REUSEADDR, 1)
        listener.bind(('', port))
        listener.listen(1)


def test_leader_is_in_front_and_the_others_have_logs(launch):
  says = 'print({0!r}); print({0!r} + " too", file=sys.stderr)'
  for _ in range(2):
    code, out, err = launch.run('--local_workers=2',
                                worker_0=says.format('{"result": 1}'),
                                worker_1=says.format('other'))
    assert (code, out) == (0, '{"result": 1}\n')
    assert err == ('starting tasks (2 worker): the output of worker 0 follows, the others log to '
                   'model/logs\n'
                   '{"result": 1} too\n')
  # A log is gone on with, as the run is.
  assert sorted(launch.log('worker-1.log').splitlines()) == ['other'] * 2 + ['other too'] * 2
  assert os.listdir(str(launch.folder / 'model' / 'logs')) == ['worker-1.log']


def test_leader_has_the_terminal(launch):
  ours, theirs = os.openpty()
  try:
    process = subprocess.Popen(
        [sys.executable, '-c', LAUNCHER.format(root=str(ROOT), limits=(LONG, LONG, LONG)),
         '--model_dir=model', '--train_steps=1', '--local_workers=2'],
        cwd=str(launch.folder), stderr=theirs,
        env=dict(os.environ, PLAN=json.dumps({
            'worker 0': ['sys.exit(4 * sys.stderr.isatty())'],
            'worker 1': ['wait("worker 0 start 1"); sys.exit(5 * sys.stderr.isatty())']})))
    try:
      assert process.wait(SECS) == 4
    finally:
      process.kill()
      process.wait()
  finally:
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize('arguments, told', [
    (['--local_workers=0'], '--local_workers is not a valid number: --local_workers=0: give a '
                            'whole number from 1 to 999'),
    (['--local_workers=x'], '--local_workers is not a valid number: --local_workers=x: '),
    (['--local_workers=1000'], '--local_workers is not a valid number: --local_workers=1000: '),
    (['--local_workers='], '--local_workers is not a valid number: --local_workers=: '),
    (['--local_workers=2', '--local_ps=-1'],
     '--local_ps is not a valid number: --local_ps=-1: give a whole number from 0 to 999'),
    (['--local_workers=2', '--max_restarts=1.5'], '--max_restarts is not a valid number: '),
    (['--local_ps=2'], 'a local cluster needs a number of workers: '),
    (['--model_dir=x', '--local_workers'], 'the flags cannot be read: '),
    (['--local_workers=2', '--train_steps=1', '--model_dir=/dev/null/x'],
     '--model_dir cannot be written to: '),
    (['--local_workers=2', '--model_dir=x', '--train_steps=x'], '--train_steps must be an integer'),
    (['--local_workers=2', '--mode=doctor'],
     'a local cluster can only train: --local_workers --mode=doctor'),
])
def test_wrong_values(arguments, told, capsys):
  assert local_cluster.main(arguments) == 2
  out, err = capsys.readouterr()
  assert out == '' and err.count('\n') == 1
  assert err.startswith('error: ' + told)


@pytest.mark.parametrize('arguments, code, out, err', [
    (['--help'], 0, 'python -m estimator_train', ''),
    (['--train_steps=1'], 2, '', 'error: '),
    (['--no_such_flag', '--model_dir=x'], 2, '', 'error: unknown flag: --no_such_flag: '),
])
def test_what_the_program_says_without_a_cluster(tmp_path, arguments, code, out, err):
  done = subprocess.run(
      [sys.executable, '-m', 'estimator_train.launcher.local_cluster', '--local_workers=2',
       *arguments],
      cwd=str(tmp_path), env=child_process.child_environment(), universal_newlines=True,
      timeout=SECS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert done.returncode == code
  assert done.stdout.startswith(out) and done.stderr.startswith(err)
  assert done.stderr.count('\n') == (1 if err else 0)
  assert os.listdir(str(tmp_path)) == []
