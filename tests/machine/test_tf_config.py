"""The form of TF_CONFIG."""

import json

import pytest

from estimator_train.machine import tf_config

CLUSTER = {'worker': ['a:1', 'b:2'], 'ps': ['c:3']}


def check(cluster, task):
  return tf_config.check(json.dumps({'cluster': cluster, 'task': task}))


@pytest.mark.parametrize('text', [None, '{}', '{"task": {"type": "worker", "index": 0}}'])
def test_no_cluster(text):
  finding = tf_config.check(text)
  assert finding.level == 'ok' and 'this machine alone' in finding.found


@pytest.mark.parametrize('task, found', [
    ({'type': 'worker', 'index': 1}, 'worker 1 of 1 ps, 2 worker'),
    ({'type': 'ps', 'index': '0'}, 'ps 0 of 1 ps, 2 worker'),
    ({'type': 'evaluator', 'index': 0}, 'evaluator 0 of 1 ps, 2 worker'),
])
def test_right(task, found):
  finding = check(CLUSTER, task)
  assert finding.level == 'ok' and finding.found == found


@pytest.mark.parametrize('text, found', [
    ('', 'is no JSON'), ('{"cluster": ', 'is no JSON'), ('[1]', 'is no JSON object'),
    ('{"cluster": ["a:1"]}', 'must be objects'), ('{"task": 0}', 'must be objects'),
])
def test_broken(text, found):
  finding = tf_config.check(text)
  assert finding.level == 'error' and found in finding.found


@pytest.mark.parametrize('cluster, task, found', [
    (CLUSTER, {}, 'type null'),
    (CLUSTER, {'type': 'chief', 'index': 0}, 'type "chief"'),
    (CLUSTER, {'type': ['worker'], 'index': 0}, r'type ["worker"]'),
    (CLUSTER, {'type': 'worker', 'index': 2}, 'index 2 is none of 0 to 1'),
    (CLUSTER, {'type': 'worker', 'index': -1}, 'index -1'),
    (CLUSTER, {'type': 'worker'}, 'index null'),
    ({'worker': 'a:1'}, {}, '"worker" has no list'),
    ({'worker': []}, {}, '"worker" has no list'),
    ({'worker': ['a']}, {}, '"a" is no HOST:PORT'),
    ({'worker': [1]}, {}, '1 is no HOST:PORT'),
    ({'worker': ['a:1', 'a:1']}, {}, 'twice'),
])
def test_wrong(cluster, task, found):
  finding = check(cluster, task)
  assert finding.level == 'error' and found in finding.found
