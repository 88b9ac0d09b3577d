"""The form of TF_CONFIG."""

import json

import pytest

from estimator_train.doctor import tf_config_check

CLUSTER = {'worker': ['a:1', 'b:2'], 'ps': ['c:3']}


def check(cluster, task):
  return tf_config_check.check_tf_config(json.dumps({'cluster': cluster, 'task': task}))


@pytest.mark.parametrize('text', [None, '', '{}', '{"task": {"type": "worker", "index": 0}}'])
def test_no_cluster(text):
  finding = tf_config_check.check_tf_config(text)
  assert finding.level == 'ok' and 'this machine alone' in finding.found


@pytest.mark.parametrize('task, found', [
    ({'type': 'worker', 'index': 1}, 'worker 1 of 2 worker, 1 ps'),
    ({'type': 'ps', 'index': '0'}, 'ps 0 of 2 worker, 1 ps'),
    ({'type': 'evaluator', 'index': 0}, 'evaluator of 2 worker, 1 ps'),
])
def test_right(task, found):
  finding = check(CLUSTER, task)
  assert finding.level == 'ok' and finding.found == found


# One of each kind; tests/cluster/test_tf_config.py has every mistake.
@pytest.mark.parametrize('text, found, remedy', [
    ('{"cluster": ', 'it must be JSON', 'give {"cluster": '),
    ('{"task": 0}', 'task must be an object: 0', 'give {"cluster": '),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
     'this task is not in the cluster: task.type=worker task.index=1', 'index from 0 to 0'),
    ('{"cluster": {"worker": ["a:1", "a:1"]}}',
     'each task must have its own address: cluster.worker[1]=a:1, the same as cluster.worker[0]',
     'change one of the two addresses'),
])
def test_wrong(text, found, remedy):
  finding = tf_config_check.check_tf_config(text)
  assert finding.level == 'error'
  assert finding.found.startswith(found) and remedy in finding.remedy


@pytest.mark.parametrize('text, workers', [
    (None, 1), ('{', 1), ('{}', 1),
    (json.dumps({'cluster': CLUSTER, 'task': {'type': 'ps', 'index': 0}}), 2)])
def test_number_of_workers(text, workers):
  assert tf_config_check.count_workers(text) == workers
