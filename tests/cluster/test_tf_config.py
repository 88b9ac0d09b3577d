"""TF_CONFIG: what is read from it, and every way to get it wrong."""

import json
import os
import socket

import pytest
from hypothesis import given, settings, strategies as st

from estimator_train.cluster import network, tf_config, worker
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import UserError

WORKERS = {'worker': ['a:1', 'b:2']}
SERVERS = {'chief': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}


def read(cluster, kind='worker', index=0):
  text = json.dumps({'cluster': cluster, 'task': {'type': kind, 'index': index}})
  return tf_config.parse_cluster({'TF_CONFIG': text})


@pytest.mark.parametrize('environ', [
    {}, {'TF_CONFIG': ''}, {'TF_CONFIG': ' \n'}, {'TF_CONFIG': '{}'},
    {'TF_CONFIG': '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},
    # As of `gcloud ai-platform local train`.
    {'TF_CONFIG': '{"environment": "cloud", "cluster": {}, "job": {"args": []}, "task": {}}'},
])
def test_no_cluster(environ):
  assert tf_config.parse_cluster(environ) is None


def test_worker_0_is_chief_where_there_is_none():
  cluster = read(WORKERS, index='1')
  assert cluster.task == Task('worker', 1) and str(cluster.task) == 'worker 1'
  assert cluster.chief == Task('worker', 0) and not cluster.is_chief
  assert read(WORKERS, index=0).is_chief
  assert (cluster.num_workers, cluster.rank) == (2, 1)
  assert cluster.workers == cluster.members == (Task('worker', 0), Task('worker', 1))
  assert cluster.address(cluster.task) == 'b:2'


def test_chief_comes_first():
  cluster = read(SERVERS, 'worker', 0)
  assert cluster.chief == Task('chief', 0) and str(cluster.chief) == 'chief'
  assert cluster.workers == (Task('chief', 0), Task('worker', 0), Task('worker', 1))
  assert (cluster.num_workers, cluster.rank) == (3, 1)
  assert cluster.parameter_servers == (Task('ps', 0),)
  assert cluster.members == cluster.workers + cluster.parameter_servers
  assert read(SERVERS, 'chief').is_chief and read(SERVERS, 'ps').rank is None


@pytest.mark.parametrize('extra', [{}, {'evaluator': ['e:1']}])
def test_evaluator_is_no_member(extra):
  cluster = read(dict(SERVERS, **extra), 'evaluator')
  assert str(cluster.task) == 'evaluator' and cluster.task not in cluster.members
  assert cluster.rank is None and not cluster.is_chief


@pytest.mark.parametrize('address, place', [
    ('[::1]:2222', ('::1', 2222)), ('10.0.0.1:65535', ('10.0.0.1', 65535)),
    ('train-worker_0.ns.svc:1', ('train-worker_0.ns.svc', 1)),
])
def test_addresses(address, place):
  cluster = read({'worker': [address]})
  assert network.split_address(cluster.address(cluster.task)) == place


# (cluster, task, the whole message after `TF_CONFIG: `, up to its remedy)
BAD = [
    (['a:1'], {}, 'cluster must be an object: a list'),
    (WORKERS, 'worker', 'task must be an object: worker'),
    ({'worker': 'a:1'}, {},
     'each type of task must have a list of addresses: cluster.worker="a:1"'),
    ({'worker': [], 'ps': []}, {}, 'a cluster must have a chief or a worker: cluster has neither'),
    ({'chief': ['a:1'], 'master': ['b:1']}, {}, 'a cluster can have only one chief: cluster.chief'),
    ({'ps': {}}, {},
     'each type of task must have a list of addresses: cluster.ps=an empty object'),
    ({'worker': [1]}, {}, 'an address must be HOST:PORT: cluster.worker[0]=1'),
    ({'worker': ['a']}, {}, 'an address must be HOST:PORT: cluster.worker[0]=a'),
    ({'worker': [':1']}, {}, 'an address must be HOST:PORT: cluster.worker[0]=":1"'),
    ({'worker': ['a:x']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="a:x"'),
    ({'worker': ['a b:1']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="a b:1"'),
    ({'worker': ['a:1\n']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="a:1\\n"'),
    ({'worker': ['::1:2222']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="::1:2222"'),
    ({'worker': ['[zz]:22']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="[zz]:22"'),
    ({'worker': ['grpc://a:1']}, {}, 'an address must be HOST:PORT: cluster.worker[0]="grpc://a:'),
    ({'worker': ['a' * 99]}, {},
     'an address must be HOST:PORT: cluster.worker[0]=' + 'a' * 60 + '.'),
    ({'worker': ['a:0']}, {}, 'a port is out of range: cluster.worker[0]="a:0"'),
    ({'worker': ['a:65536']}, {}, 'a port is out of range: cluster.worker[0]="a:65536"'),
    ({'worker': ['a:2', 'a:2']}, {},
     'each task must have its own address: cluster.worker[1]=a:2, the same as cluster.worker[0]: '
     'change one of the two addresses'),
    ({'worker': ['a:2'], 'ps': ['A:02']}, {},
     'each task must have its own address: cluster.ps[0]=A:02, the same as cluster.worker[0]'),
    ({'worker': ['[::1]:2', '[0::1]:2']}, {},
     'each task must have its own address: cluster.worker[1]=[0::1'),
    ({'chief': ['a:1', 'b:1']}, {},
     'a cluster can have only one chief: cluster.chief has 2 addresses'),
    ({'worker': ['w:1'], 'evaluator': ['a:1', 'b:1']}, {},
     'a cluster can have only one evaluator: cluster'),
    (WORKERS, {'type': 'master', 'index': 0},
     'this task is not in the cluster: task.type=chief, and cluster has worker: add'),
    ({'wrkr': ['a:1']}, {}, 'unknown task type: cluster.wrkr: choose from chief, w'),
    (WORKERS, {'type': 'wrkr', 'index': 0}, 'unknown task type: task.type=wrkr: choo'),
    (WORKERS, {'type': ['worker'], 'index': 0}, 'unknown task type: task.type=a list'),
    ({'ps': ['a:1']}, {'type': 'ps', 'index': 0},
     'a cluster must have a chief or a worker: cluster has neither'),
    (WORKERS, {}, 'task must have a type and an index: task.type is missing'),
    (WORKERS, {'type': 'worker'}, 'task must have a type and an index: task.index is missing'),
    (WORKERS, {'type': 'chief', 'index': 0},
     'this task is not in the cluster: task.type=chief, and cluster has worker: add'),
    (WORKERS, {'type': 'worker', 'index': 2},
     'this task is not in the cluster: task.type=worker task.index=2: give an index from 0'),
    (WORKERS, {'type': 'worker', 'index': -1}, 'this task is not in the cluster: task.type=wo'),
    (WORKERS, {'type': 'evaluator', 'index': 1}, 'this task is not in the cluster: task.type='),
    (WORKERS, {'type': 'worker', 'index': '0x1'},
     'task.index must be a whole number: task.index=0x1'),
    (WORKERS, {'type': 'worker', 'index': '1\n'},
     'task.index must be a whole number: task.index="1'),
    (WORKERS, {'type': 'worker', 'index': '-1'},
     'task.index must be a whole number: task.index=-1'),
    (WORKERS, {'type': 'worker', 'index': 1.0},
     'task.index must be a whole number: task.index=1.0'),
    (WORKERS, {'type': 'worker', 'index': True},
     'task.index must be a whole number: task.index=true'),
    (WORKERS, {'type': 'worker', 'index': {}},
     'task.index must be a whole number: task.index=an empty obj'),
]


@pytest.mark.parametrize('cluster, task, message', BAD, ids=[case[2][:60] for case in BAD])
def test_bad(cluster, task, message):
  with pytest.raises(UserError) as caught:
    tf_config.parse_cluster({'TF_CONFIG': json.dumps({'cluster': cluster, 'task': task})})
  assert str(caught.value).startswith('TF_CONFIG: ' + message)


@pytest.mark.parametrize('cluster, task, addresses', [
    ({'master': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}, 'master', SERVERS),
    ({'master': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}, 'chief', SERVERS),
    ({'worker': ['a:1', 'b:2'], 'ps': [], 'chief': None}, 'worker', WORKERS),
])
def test_fields_that_platforms_write(cluster, task, addresses):
  text = json.dumps({'cluster': cluster, 'task': {'type': task, 'index': 0, 'trial': '1'},
                     'environment': 'cloud', 'job': {'job_name': 'x'}})
  found = tf_config.parse_cluster({'TF_CONFIG': text})
  assert {name: list(tasks) for name, tasks in found.addresses.items()} == addresses
  assert found.is_chief
  assert tf_config.parse_cluster({'TF_CONFIG': found.to_tf_config()}) == found


@pytest.mark.parametrize('config, given', [
    ({'task': {'type': 'worker', 'index': 1}}, 'task.type=worker, task.index=1'),
    ({'task': {'type': 'chief', 'index': 0}, 'cluster': {}}, 'task.type=chief, task.index=0'),
    ({'task': {'type': 'ps'}}, 'task.type=ps'),
    ({'task': {'index': []}}, 'task.index=an empty list'),
    ({'task': {'type': 'evaluator', 'index': 'x y'}}, 'task.type=evaluator, task.index="x y"'),
    ({'task': {'type': 'worker', 'index': 0}, 'sparseCluster': {}},
     'task.type=worker, task.index=0, unknown field sparseCluster'),
    ({'Cluster': WORKERS}, 'unknown field Cluster'),
    ({'cluster ': WORKERS}, 'unknown field "cluster "'),
])
def test_task_without_a_cluster(config, given):
  with pytest.raises(UserError) as caught:
    tf_config.parse_cluster({'TF_CONFIG': json.dumps(config)})
  assert str(caught.value).startswith(
      'TF_CONFIG: it must have a cluster: no cluster, but {}: give'.format(given))


@pytest.mark.parametrize('text, message', [
    ('{"cluster": ', 'TF_CONFIG: it must be JSON: Expecting value'),
    ('[' * 100000, 'TF_CONFIG: it must be JSON: '),
    ('[1]', 'TF_CONFIG: it must be a JSON object: a list: give {"cluster": '),
])
def test_broken(text, message):
  with pytest.raises(UserError) as caught:
    tf_config.parse_cluster({'TF_CONFIG': text})
  assert str(caught.value).startswith(message) and len(str(caught.value).splitlines()) == 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10)
ADDRESS = st.from_regex(r'\[?[a-z:.]{1,4}\]?:[0-9]{1,6}') | ANYTHING
KIND = st.sampled_from(tf_config.TASK_TYPES + ('master', 'x'))
NEARLY = st.fixed_dictionaries({
    'cluster': st.dictionaries(KIND, st.lists(ADDRESS, max_size=3) | ANYTHING, max_size=4),
    'task': st.fixed_dictionaries({'type': KIND | ANYTHING,
                                   'index': st.integers(-1, 3) | ANYTHING}) | ANYTHING})


@settings(deadline=None)
@given(ANYTHING | NEARLY)
def test_any_value_gives_a_cluster_or_a_user_error(config):
  try:
    cluster = tf_config.parse_cluster({'TF_CONFIG': json.dumps(config)})
  except UserError as error:
    assert str(error).startswith('TF_CONFIG: ') and len(str(error).splitlines()) == 1
    return
  if cluster is not None:
    assert cluster.chief in cluster.members
    assert cluster.task in cluster.members + (Task('evaluator', 0),)


@pytest.mark.parametrize('cluster, strategy', [
    (WORKERS, 'multi_worker_mirrored'), (SERVERS, 'parameter_server'),
    ({'worker': ['a:1']}, 'mirrored'), ({'chief': ['a:1'], 'evaluator': ['b:1']}, 'off'),
])
def test_strategy_fits(cluster, strategy):
  worker.check_strategy(read(cluster, list(cluster)[0]), strategy)


@pytest.mark.parametrize('cluster, strategy, message', [
    (SERVERS, 'multi_worker_mirrored', 'multi_worker_mirrored uses no parameter servers: '
     r'cluster.ps\[0\]=d:3: leave cluster.ps out, or give --distribution_strategy=parameter_serv'),
    (WORKERS, 'parameter_server', 'parameter_server needs a chief: cluster has 2 worker: add "ch'),
    ({'chief': ['a:1']}, 'parameter_server', 'needs a parameter server: cluster has 1 chief: add'),
    (WORKERS, 'mirrored', 'several tasks, but --distribution_strategy=mirrored runs in one: '
     'cluster has 2 worker: give --distribution_strategy=multi_worker_mirrored to every task'),
    (SERVERS, 'off', 'give --distribution_strategy=parameter_server to every task'),
])
def test_strategy_does_not_fit(cluster, strategy, message):
  with pytest.raises(UserError, match=message):
    worker.check_strategy(read(cluster, list(cluster)[0]), strategy)


@pytest.fixture
def taken():
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))
    listener.listen(1)
    yield listener.getsockname()[1]


def free_port():
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))
    return listener.getsockname()[1]


def test_network_is_ready(taken):
  # Another's port may be taken, and one's own name need not have an address.
  tf_config.check_network(read({'worker': ['no.such.host.invalid:{}'.format(free_port()),
                                           'localhost:{}'.format(taken)]}))


def test_own_port_is_taken(taken):
  with pytest.raises(UserError) as caught:
    tf_config.check_network(read({'worker': ['localhost:{}'.format(taken)]}))
  given = r'cluster.worker[0]=localhost:{} (process {} ('.format(taken, os.getpid())
  message = str(caught.value)
  assert given in message and 'the port of this task cannot be opened' in message


def test_own_port_is_taken_by_who_knows_whom(taken, monkeypatch):
  monkeypatch.setattr(network, 'listening_process', lambda port: '')
  with pytest.raises(UserError, match='localhost:{} .*in use'.format(taken)):
    tf_config.check_network(read({'worker': ['localhost:{}'.format(taken)]}))


@pytest.mark.parametrize('host', ['no.such.host.invalid', 'a..b'])
def test_host_has_no_address(host):
  message = r'a host name cannot be resolved: cluster.ps\[0\]={}:1 '.format(host)
  with pytest.raises(UserError, match=message):
    tf_config.check_network(read({'worker': ['localhost:{}'.format(free_port())],
                                  'ps': [host + ':1']}))


def test_evaluator_needs_no_port(taken):
  tf_config.check_network(read({'worker': ['localhost:{}'.format(taken)]}, 'evaluator'))
