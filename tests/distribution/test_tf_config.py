"""TF_CONFIG: what is read from it, and every way to get it wrong."""

import itertools
import json
import os
import socket
from unittest import mock

import pytest
from cluster_processes import free_addresses

from estimator_train.distribution import rendezvous, sockets, tf_config
from estimator_train.distribution.tf_config import Task
from estimator_train.errors import UserError

WORKERS = {'worker': ['a:1', 'b:2']}
SERVERS = {'chief': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}
WORKER_0 = {'type': 'worker', 'index': 0}


def read(cluster, kind='worker', index=0, **fields):
  return tf_config.parse_cluster({'TF_CONFIG': json.dumps(dict(
      fields, cluster=cluster, task={'type': kind, 'index': index}))})


@pytest.mark.parametrize('variables', [
    {}, {'TF_CONFIG': ' \n'}, {'TF_CONFIG': '{}'},
    # As of `gcloud ai-platform local train`.
    {'TF_CONFIG': '{"environment": "cloud", "cluster": {}, "job": {"args": []}, "task": {}}'},
    {'TF_CONFIG': '{"cluster": {}, "task": {"type": "worker", "index": 0}}'}])
def test_no_cluster(variables):
  assert tf_config.parse_cluster(variables) is None


def test_the_tasks_of_a_cluster():
  cluster = read(WORKERS, index='1')
  assert (cluster.task, cluster.chief) == (Task('worker', 1), Task('worker', 0))
  assert (str(cluster.task), cluster.address(cluster.task)) == ('worker 1', 'b:2')
  assert cluster.workers == cluster.members == (Task('worker', 0), Task('worker', 1))
  cluster = read(SERVERS)
  assert str(cluster.chief) == 'chief'
  assert cluster.workers == (Task('chief', 0), Task('worker', 0), Task('worker', 1))
  assert cluster.members == cluster.workers + (Task('ps', 0),)
  for extra in ({}, {'evaluator': ['e:1']}):
    assert read(dict(SERVERS, **extra), 'evaluator').members == cluster.members
  hosts = {'worker': ['a:1', '[::1]:1', 'a:2', 'a:3']}
  assert [read(hosts, index=index).local_rank for index in range(4)] == [0, 0, 1, 2]


ADDRESSES = {'worker': ['[::1]:22', '10.0.0.1:65535', 'train-0_1.ns.svc:1']}


@pytest.mark.parametrize('given, task, addresses', [
    ({'master': ['c:1'], 'worker': ['a:1', 'b:2'], 'ps': ['d:3']}, 'master', SERVERS),
    ({'worker': ['a:1', 'b:2'], 'ps': [], 'chief': None}, 'worker', WORKERS),
    (ADDRESSES, 'worker', ADDRESSES)])
def test_fields_that_platforms_write(given, task, addresses):
  found = read(given, task, environment='cloud', job={'job_name': 'x'})
  assert {kind: list(tasks) for kind, tasks in found.addresses.items()} == addresses
  assert found.is_chief
  assert tf_config.parse_cluster({'TF_CONFIG': found.to_tf_config()}) == found


HOST_PORT, OWN = 'an address must be HOST:PORT: ', 'each task must have its own address: '
LISTS = 'each type of task must have a list of addresses: '
NOT_IN, INDEX = 'this task is not in the cluster: ', 'task.index must be a whole number: '
NO_CLUSTER = 'it must have a cluster: no cluster, but '
# TF_CONFIG, as a value or as text, and the message after `TF_CONFIG: `, up to its remedy.
BAD = [
    ('{"cluster": ', 'it must be JSON: Expecting value'),
    ('[' * 100000, 'it must be JSON: '),
    ([1], 'it must be a JSON object: a list: give {"cluster": '),
    *(({'cluster': cluster, 'task': WORKER_0}, message) for cluster, message in (
        (['a:1'], 'cluster must be an object: a list'),
        ({'worker': 'a:1'}, LISTS + 'cluster.worker="a:1"'),
        ({'ps': ['a:1']}, 'a cluster must have a chief or a worker: cluster has neither'),
        ({'chief': ['a:1'], 'master': ['b:1']}, 'a cluster can have only one chief: cluster.chief'),
        ({'wrkr': ['a:1']}, 'unknown task type: cluster.wrkr: choose from chief, w'),
        ({'worker': ['a' * 99]}, HOST_PORT + 'cluster.worker[0]=' + 'a' * 60 + '...: give'),
        *(({'worker': [address]}, HOST_PORT + 'cluster.worker[0]=' + json.dumps(address))
          for address in (1, 'a:1\n', '[zz]:22', 'grpc://a:1')),
        *(({'worker': [address]}, 'a port is out of range: cluster.worker[0]="{}"'.format(address))
          for address in ('a:0', 'a:65536')),
        ({'worker': ['a:2'], 'ps': ['A:02']}, OWN + 'cluster.ps[0]=A:02, the same as'),
        ({'worker': ['[::1]:2', '[0::1]:2']}, OWN + 'cluster.worker[1]=[0::1'))),
    *(({'cluster': WORKERS, 'task': task}, message) for task, message in (
        ('worker', 'task must be an object: worker'),
        ({'type': 'worker'}, 'task must have a type and an index: task.index is missing'),
        ({'type': 'master', 'index': 0}, NOT_IN + 'task.type=chief, and cluster has worker: add'),
        ({'type': ['worker'], 'index': 0}, 'unknown task type: task.type=a list'),
        *(({'type': 'worker', 'index': index}, NOT_IN + 'task.type=worker task.index=' + str(index))
          for index in (2, -1)),
        *(({'type': 'worker', 'index': index}, INDEX + 'task.index=' + json.dumps(index))
          for index in ('1\n', True)))),
    ({'task': WORKER_0, 'sparseCluster': {}},
     NO_CLUSTER + 'task.type=worker, task.index=0, unknown field sparseCluster: give')]


@pytest.mark.parametrize('config, message', BAD, ids=[message[:60] for _, message in BAD])
def test_mistakes_are_named(config, message):
  with pytest.raises(UserError) as caught:
    tf_config.parse_cluster(
        {'TF_CONFIG': config if isinstance(config, str) else json.dumps(config)})
  assert str(caught.value).startswith('TF_CONFIG: ' + message)
  assert len(str(caught.value).splitlines()) == 1


def test_the_port_and_the_host_names_are_checked(monkeypatch):
  own, = free_addresses(1)
  with sockets.open_listener(0) as listener:
    here = 'localhost:{}'.format(listener.getsockname()[1])
    # Another's port may be taken, and one's own name need not have an address.
    rendezvous.wait_until_hosts_resolve(
        read({'worker': [own.replace('127.0.0.1', 'no.such.host.invalid'), here]}), 60)
    for shown in ('process {} '.format(os.getpid()), 'Address already in use'):
      with pytest.raises(UserError, match=(
          r'the port of this task cannot be opened: cluster.worker\[0\]={} .{}'.format(
              here, shown))):
        rendezvous.wait_until_hosts_resolve(read({'worker': [here]}), 60)
      # As for a process of another user.
      monkeypatch.setattr(sockets, 'describe_listening_process', lambda port: '')
    with pytest.raises(UserError, match=r'cannot be resolved: cluster.ps\[0\]=a..b:1 '):
      rendezvous.wait_until_hosts_resolve(read({'worker': [own], 'ps': ['a..b:1']}), -1)


def test_waits_until_a_host_has_an_address(monkeypatch, caplog):
  caplog.set_level('INFO', 'estimator_train')
  unknown = OSError('unknown')
  monkeypatch.setattr(tf_config.socket, 'getaddrinfo', mock.Mock(
      side_effect=[unknown] * 5 + [None] + [unknown] * 99))
  monkeypatch.setattr(tf_config, 'listen_on_task_port', lambda cluster: socket.socket())
  secs = itertools.count()
  rendezvous.wait_until_hosts_resolve(read(WORKERS), 60, secs.__next__, lambda secs: None)
  assert 'DNS entry; retrying for another 56 s' in caplog.text
  with pytest.raises(UserError, match=r'cluster.worker\[1\]=b:2 \(unknown\)'):
    rendezvous.wait_until_hosts_resolve(read(WORKERS), 60, secs.__next__, lambda secs: None)
