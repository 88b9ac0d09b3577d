"""The rank of a process that a launcher has started, and the address of rank 0."""

import json
import threading

import pytest

from estimator_train.cluster import launches, tf_config, worker
from estimator_train.cluster.launches import Launch
from estimator_train.errors import PeerLost, UserError

HOROVODRUN = {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '4', 'HOROVOD_LOCAL_RANK': '1',
              'HOROVOD_GLOO_RENDEZVOUS_ADDR': '10.0.0.1', 'HOROVOD_GLOO_RENDEZVOUS_PORT': '99'}
OPEN_MPI = {'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_SIZE': '3',
            'OMPI_COMM_WORLD_LOCAL_RANK': '0', 'PMIX_NAMESPACE': '77'}
MPICH = {'PMI_RANK': '0', 'PMI_SIZE': '2', 'MPI_LOCALRANKID': '0'}
SLURM = {'SLURM_PROCID': '5', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_LOCALID': '1',
         'SLURM_JOB_ID': '31', 'SLURM_STEP_ID': '0'}


@pytest.mark.parametrize('environ, expected', [
    (HOROVODRUN, Launch(1, 4, 1, '10.0.0.1 99')),
    (OPEN_MPI, Launch(2, 3, 0, '77')),
    (MPICH, Launch(0, 2, 0, '')),
    (SLURM, Launch(5, 8, 1, '31 0')),
    # horovodrun inside a Slurm job.
    (dict(SLURM, **HOROVODRUN), Launch(1, 4, 1, '10.0.0.1 99 31 0')),
    # A process of mpirun that does not have a local rank.
    ({'PMI_RANK': '1', 'PMI_SIZE': '2'}, Launch(1, 2, 0, '')),
    # In a batch job, but not in a step of srun.
    ({'SLURM_PROCID': '0', 'SLURM_JOB_ID': '31'}, None),
    ({}, None),
])
def test_find_launch(environ, expected):
  found = launches.find_launch(environ)
  assert found == expected or (found[:3] == expected[:3]
                               and found.launch_id.split() == expected.launch_id.split())


@pytest.mark.parametrize('environ, pattern', [
    (dict(HOROVODRUN, HOROVOD_RANK='one'), 'HOROVOD_RANK must be a whole number: HOROVOD_RANK=one: '
     'start the program by horovodrun, mpirun or srun, or unset this variable'),
    (dict(MPICH, PMI_SIZE='-2'), 'PMI_SIZE must be a whole number: PMI_SIZE=-2: '),
    (dict(MPICH, PMI_RANK='2'), 'must be less than the number of ranks: PMI_RANK=2 PMI_SIZE=2: '),
])
def test_invalid_variables(environ, pattern):
  with pytest.raises(UserError, match=pattern):
    launches.find_launch(environ)


@pytest.mark.parametrize('environ, is_mpi_built, expected', [
    (OPEN_MPI, True, True), (MPICH, True, True), (dict(SLURM, PMIX_RANK='5'), True, True),
    (SLURM, True, False), (OPEN_MPI, False, False),
    (dict(OPEN_MPI, HOROVOD_CONTROLLER='gloo'), True, False),
    (dict(SLURM, PMIX_RANK='5', HOROVOD_CONTROLLER='GLOO'), True, False),
    (dict(SLURM, HOROVOD_CONTROLLER='mpi'), True, True)])
def test_who_connects_the_ranks_of_horovod(environ, is_mpi_built, expected):
  assert launches.mpi_connects_ranks(environ, is_mpi_built) == expected


def tasks(**counts):
  return {'TF_CONFIG': json.dumps({
      'cluster': {kind: ['a:{}'.format(100 * len(kind) + index) for index in range(count)]
                  for kind, count in counts.items()}, 'task': {'type': 'worker', 'index': 0}})}


@pytest.mark.parametrize('environ, strategy, given', [
    (SLURM, 'multi_worker_mirrored', '8 processes, but TF_CONFIG has no cluster'),
    (OPEN_MPI, 'parameter_server', '3 processes, but TF_CONFIG has no cluster'),
    (dict(MPICH, **tasks(worker=1)), 'mirrored', '2 processes, but cluster has 1 worker'),
    (dict(SLURM, **tasks(worker=1)), 'horovod', '8 processes, but cluster has 1 worker')])
def test_no_process_of_a_launcher_trains_alone(environ, strategy, given):
  with pytest.raises(UserError, match='must be a task of TF_CONFIG: ' + given):
    worker.make_worker(environ, strategy)


@pytest.mark.parametrize('environ, strategy', [
    (dict(MPICH, **tasks(worker=2)), 'multi_worker_mirrored'),
    (dict(OPEN_MPI, **tasks(worker=2, evaluator=1)), 'multi_worker_mirrored'),
    (dict(SLURM, SLURM_PROCID='0', SLURM_STEP_NUM_TASKS='1', **tasks(worker=2)), 'horovod')])
def test_processes_that_are_tasks(environ, strategy):
  assert worker.make_worker(environ, strategy).size == 2


def test_only_horovod_uses_the_variables_of_launchers():
  assert worker.make_worker(SLURM, 'mirrored') == worker.SINGLE_WORKER
  found = worker.make_worker(SLURM, 'horovod')
  assert (found.rank, found.size, found.role, found.local_rank) == (5, 8, worker.WORKER, 1)
  assert found.name == 'worker 5' and found.cluster is None
  assert worker.make_worker(dict(SLURM, SLURM_PROCID='0'), 'horovod').is_chief
  alone = dict(SLURM, SLURM_PROCID='0', SLURM_STEP_NUM_TASKS='1')
  assert worker.make_worker(alone, 'horovod') == worker.SINGLE_WORKER


def test_tf_config_has_precedence():
  config = {'cluster': {'worker': ['a:1', 'b:1', 'a:2']}, 'task': {'type': 'worker', 'index': 2}}
  found = worker.make_worker(dict(SLURM, TF_CONFIG=json.dumps(config)), 'horovod')
  assert (found.rank, found.size, found.launch, found.local_rank) == (2, 3, None, 1)


@pytest.mark.parametrize('task, local_rank', [('0', 0), ('1', 0), ('2', 1), ('3', 2)])
def test_local_rank(task, local_rank):
  config = {'cluster': {'worker': ['a:1', '[::1]:1', 'a:2', 'a:3']},
            'task': {'type': 'worker', 'index': task}}
  assert tf_config.parse_cluster({'TF_CONFIG': json.dumps(config)}).local_rank == local_rank


class Clock:
  """A clock that a fake `sleep` advances."""

  def __init__(self):
    self.now = 0.

  def __call__(self):
    return self.now

  def sleep(self, secs):
    self.now += secs


@pytest.fixture
def published(tmp_path):
  """Rank 0 of two has published its address."""
  cluster, listener = launches.publish_address(Launch(0, 2, 0, 'this'), str(tmp_path))
  yield cluster
  listener.close()


def wait(folder, launch_id='this', log=lambda line: None):
  clock = Clock()
  return launches.wait_for_address(Launch(1, 2, 1, launch_id), str(folder), 100, log, clock,
                                   clock.sleep)


def test_other_ranks_find_rank_0(published, tmp_path):
  cluster = wait(tmp_path)
  assert cluster.task == tf_config.Task('worker', 1) and cluster.num_workers == 2
  address = cluster.address(cluster.chief)
  assert address.rpartition(':')[2] == published.address(published.chief).rpartition(':')[2]
  launches.remove_address(str(tmp_path))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('content', [
    None, '', 'no JSON', '[]', '{"launch_id": "other", "hosts": ["127.0.0.1"], "port": 1}',
    # Of an earlier run with the same ID, whose rank 0 has ended.
    '{"launch_id": "this", "hosts": ["127.0.0.1"], "port": 1}'])
def test_rank_0_is_missing(content, tmp_path):
  if content is not None:
    (tmp_path / 'rank_0_address.json').write_text(content)
  lines = []
  with pytest.raises(PeerLost, match=r'worker 0.*rank_0_address.json \(all ranks must share'):
    wait(tmp_path, log=lines.append)
  assert 'worker 0' in lines[0]


def test_a_file_of_another_launch_is_replaced(published, tmp_path):
  path = tmp_path / 'rank_0_address.json'
  content = path.read_text()
  path.write_text(content.replace('"this"', '"another"'))
  timer = threading.Timer(.3, path.write_text, (content,))
  timer.start()
  cluster = launches.wait_for_address(Launch(1, 2, 1, 'this'), str(tmp_path), 60,
                                      lambda line: None)
  timer.join()
  assert cluster.num_workers == 2
