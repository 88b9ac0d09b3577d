"""Which process of a run this one is, by TF_CONFIG."""

import json

import pytest

from estimator_train.cluster import tf_config, worker
from estimator_train.cluster.worker import CHIEF, EVALUATOR, PARAMETER_SERVER, SINGLE_WORKER, WORKER
from estimator_train.errors import UserError

MIRRORED, SERVED = 'multi_worker_mirrored', 'parameter_server'


def environ(task, **counts):
  kind, _, index = task.partition(' ')
  addresses = {name: ['localhost:{}'.format(1000 * place + port) for port in range(1, count + 1)]
               for place, (name, count) in enumerate(counts.items(), 1)}
  return {'TF_CONFIG': json.dumps({'cluster': addresses,
                                   'task': {'type': kind, 'index': int(index or 0)}})}


@pytest.mark.parametrize('strategy, task, counts, expected', [
    (MIRRORED, 'worker 0', {'worker': 2}, (0, 2, CHIEF)),
    (MIRRORED, 'worker 1', {'worker': 2}, (1, 2, WORKER)),
    (MIRRORED, 'worker 1', {'chief': 1, 'worker': 2}, (2, 3, WORKER)),
    (SERVED, 'ps', {'chief': 1, 'worker': 1, 'ps': 1}, (None, 2, PARAMETER_SERVER)),
    (SERVED, 'chief', {'chief': 1, 'worker': 1, 'ps': 1}, (0, 2, CHIEF)),
    (MIRRORED, 'evaluator', {'worker': 2, 'evaluator': 1}, (None, 2, EVALUATOR)),
    # One process trains, and another evaluates what it saves.
    ('mirrored', 'evaluator', {'chief': 1, 'evaluator': 1}, (None, 1, EVALUATOR)),
    ('mirrored', 'chief', {'chief': 1, 'evaluator': 1}, (0, 1, CHIEF)),
])
def test_rank_size_and_role(strategy, task, counts, expected):
  found = worker.make_worker(environ(task, **counts), strategy)
  assert (found.rank, found.size, found.role) == expected
  assert found.is_chief == (found.role == CHIEF) and found.name in (task, task + ' 0')
  assert found.has_evaluator == ('evaluator' in counts)


@pytest.mark.parametrize('variables', [{}, {'TF_CONFIG': ''}, environ('worker 0', worker=1)])
def test_alone(variables):
  assert worker.make_worker(variables, 'mirrored') == SINGLE_WORKER
  assert SINGLE_WORKER.is_chief and not SINGLE_WORKER.has_evaluator and SINGLE_WORKER.name == CHIEF


def test_a_cluster_of_another_strategy():
  with pytest.raises(UserError, match='names several tasks'):
    worker.make_worker(environ('worker 0', worker=2), 'mirrored')


def test_waits_until_a_host_has_an_address(monkeypatch):
  now, known_at = [0.], 5
  cluster = tf_config.parse_cluster(environ('worker 0', worker=2))

  def check_network(unused_cluster):
    if now[0] < known_at:
      raise tf_config.UnresolvedHost('a host name cannot be resolved', 'x', 'correct it')

  def sleep(secs):
    now[0] += secs

  monkeypatch.setattr(tf_config, 'check_network', check_network)
  worker.wait_for_network(cluster, 60, lambda: now[0], sleep)
  assert now == [5]
  known_at = 1000
  with pytest.raises(tf_config.UnresolvedHost):
    worker.wait_for_network(cluster, 60, lambda: now[0], sleep)
  assert 60 < now[0] - 5 <= 62
