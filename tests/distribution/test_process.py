"""What TF_CONFIG or a launcher makes of a process, and how its ranks find the address of rank 0."""

import json
import threading

import pytest

from estimator_train.distribution import horovod, process, sockets
from estimator_train.distribution.process import LaunchedProcess
from estimator_train.distribution.tf_config import Task
from estimator_train.errors import PeerLost, UserError

MIRRORED, SERVED = 'multi_worker_mirrored', 'parameter_server'
WORKERS = {'worker': ['a:1', 'b:2']}
SERVERS = {'chief': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}
HOROVODRUN = {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '4', 'HOROVOD_LOCAL_RANK': '1',
              'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1', 'HOROVOD_GLOO_RENDEZVOUS_PORT': '99'}
OPEN_MPI = {'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_SIZE': '3',
            'OMPI_COMM_WORLD_LOCAL_RANK': '0', 'PMIX_NAMESPACE': '77'}
MPICH = {'PMI_RANK': '1', 'PMI_SIZE': '2', 'MPI_LOCALRANKID': '1'}
SLURM = {'SLURM_PROCID': '5', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_LOCALID': '1',
         'SLURM_JOB_ID': '31', 'SLURM_STEP_ID': '0'}
ALONE = 0, 1, 'chief', 0, 'chief'


def tf_config(cluster, kind='worker', index=0):
  return {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': kind, 'index': index}})}


@pytest.mark.parametrize('environ, strategy, expected', [
    *(({'TF_CONFIG': '{}'}, strategy, ALONE)
      for strategy in ('mirrored', MIRRORED, SERVED, 'horovod')),
    (tf_config(WORKERS), MIRRORED, (0, 2, 'chief', 0, 'worker 0')),
    (tf_config(dict(WORKERS, evaluator=['e:1']), 'evaluator'), MIRRORED,
     (None, 2, 'evaluator', 0, 'evaluator')),
    (tf_config(SERVERS, index=1), SERVED, (2, 3, 'worker', 0, 'worker 1')),
    (tf_config(SERVERS, 'ps'), SERVED, (None, 3, 'ps', 0, 'ps 0')),
    # One process trains, and another evaluates what it saves.
    (tf_config({'chief': ['a:1'], 'evaluator': ['b:1']}, 'chief'), 'off', ALONE),
    (OPEN_MPI, 'horovod', (2, 3, 'worker', 0, 'worker 2')),
    (MPICH, 'horovod', (1, 2, 'worker', 1, 'worker 1')),
    # Without a local rank.
    ({'PMI_RANK': '0', 'PMI_SIZE': '2'}, 'horovod', (0, 2, 'chief', 0, 'worker 0')),
    (SLURM, 'horovod', (5, 8, 'worker', 1, 'worker 5')),
    # horovodrun inside a Slurm job.
    (dict(SLURM, **HOROVODRUN), 'horovod', (1, 4, 'worker', 1, 'worker 1')),
    # In a batch job, but not in a step of srun.
    ({'SLURM_PROCID': '0', 'SLURM_JOB_ID': '31'}, 'horovod', ALONE),
    (SLURM, 'mirrored', ALONE),  # Only Horovod uses the variables.
    *((dict(SLURM, SLURM_PROCID='0', SLURM_STEP_NUM_TASKS='1'), strategy, ALONE)
      for strategy in (MIRRORED, 'horovod')),
    # TF_CONFIG has precedence.
    (dict(SLURM, **tf_config({'worker': ['a:1', 'a:2', 'a:3']}, index=2)), 'horovod',
     (2, 3, 'worker', 2, 'worker 2'))])
def test_the_role_of_each_process(environ, strategy, expected):
  found = process.identify_process(environ, strategy)
  assert (found.rank, found.num_workers, found.role, found.local_rank, found.name) == expected
  assert found.is_chief == (found.role == process.CHIEF)
  assert found.has_evaluator == ('evaluator' in environ.get('TF_CONFIG', ''))


@pytest.mark.parametrize('environ, strategy, message', [
    (tf_config(SERVERS), MIRRORED, r'no parameter servers: cluster.ps\[0\]=d:3: leave cluster.ps'),
    (tf_config(WORKERS), SERVED, 'needs a chief: cluster has 2 worker: add "chief": '),
    (tf_config({'chief': ['a:1']}, 'chief'), SERVED, ': cluster has 1 chief: add "ps": '),
    (tf_config(WORKERS), 'mirrored', '=mirrored runs in one: cluster has 2 worker: give --distr'),
    (dict(HOROVODRUN, HOROVOD_RANK='one'), 'horovod', 'be a whole number: HOROVOD_RANK=one: start'),
    (dict(MPICH, PMI_RANK='2'), 'horovod', 'less than the number of ranks: PMI_RANK=2 PMI_SIZE=2'),
    # No process of a launcher trains alone.
    (SLURM, MIRRORED, ': 8 processes, but TF_CONFIG has no cluster: start one proc'),
    *((dict(SLURM, **tf_config({'worker': ['a:1']})), strategy,
       ': 8 processes, but cluster has 1 worker') for strategy in ('mirrored', 'horovod'))])
def test_errors(environ, strategy, message):
  with pytest.raises(UserError, match=message):
    process.identify_process(environ, strategy)


@pytest.mark.parametrize('environ, is_mpi_built, expected', [
    (OPEN_MPI, True, True), (MPICH, True, True), (dict(SLURM, PMIX_RANK='5'), True, True),
    (SLURM, True, False), (OPEN_MPI, False, False),
    (dict(OPEN_MPI, HOROVOD_CONTROLLER='GLOO'), True, False),
    (dict(SLURM, HOROVOD_CONTROLLER='mpi'), True, True)])
def test_who_connects_the_ranks_of_horovod(environ, is_mpi_built, expected):
  assert horovod.mpi_connects_ranks(environ, is_mpi_built) == expected


def test_the_ranks_of_a_launch_have_the_same_id():
  ids = [process.find_launched_process(environ).launch_id.split() for environ in (
      HOROVODRUN, OPEN_MPI, MPICH, SLURM, dict(SLURM, **HOROVODRUN))]
  assert ids == [['10.0.0.1', '99'], ['77'], [], ['31', '0'], ['10.0.0.1', '99', '31', '0']]


def wait(folder, secs=60, log=str):
  return horovod.wait_for_address(
      LaunchedProcess(1, 2, 1, 'this'), str(folder), sockets.StartTimeout(secs, log))


def test_other_ranks_find_rank_0(tmp_path):
  published, listener = horovod.publish_address(
      LaunchedProcess(0, 2, 0, 'this'), str(tmp_path))
  path = tmp_path / 'rank_0_address.json'
  content = path.read_text()
  path.write_text(content.replace('"this"', '"another"'))  # Of an earlier launch.
  timer = threading.Timer(.3, path.write_text, (content,))
  timer.start()
  with listener:
    cluster = wait(tmp_path)
    assert path.read_text() == content
    assert cluster == wait(tmp_path)
  assert cluster.task == Task('worker', 1) and len(cluster.workers) == 2
  address = cluster.address(cluster.chief)
  assert address.rpartition(':')[2] == published.address(published.chief).rpartition(':')[2]
  (tmp_path / 'rank_0_address.json').unlink()
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('content', [
    None, '[]', '{"launch_id": "other", "hosts": ["127.0.0.1"], "port": 1}',
    # Of an earlier run with the same ID, whose rank 0 has ended.
    '{"launch_id": "this", "hosts": ["127.0.0.1"], "port": 1}'])
def test_rank_0_is_missing(content, tmp_path, monkeypatch):
  monkeypatch.setattr(horovod, '_RETRY_SECS', .01)
  monkeypatch.setattr(sockets, '_LOG_EVERY_SECS', .1)
  if content is not None:
    (tmp_path / 'rank_0_address.json').write_text(content)
  lines = []
  with pytest.raises(PeerLost, match=r'worker 0.*rank_0_address.json \(all ranks must share'):
    wait(tmp_path, .3, lines.append)
  assert 'worker 0' in lines[0]
