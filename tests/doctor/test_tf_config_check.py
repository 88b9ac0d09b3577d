"""The form of TF_CONFIG."""

import json

import pytest

from estimator_train.doctor import tf_config_check

CLUSTER = {'worker': ['a:1', 'b:2'], 'ps': ['c:3']}


def check(cluster, task):
  return tf_config_check.check(json.dumps({'cluster': cluster, 'task': task}))


@pytest.mark.parametrize('text', [None, '', '{}', '{"task": {"type": "worker", "index": 0}}'])
def test_no_cluster(text):
  finding = tf_config_check.check(text)
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
    ('{"cluster": ', 'it is no JSON', 'give {"cluster": '),
    ('{"task": 0}', 'task is no object: 0', 'give {"cluster": '),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
     'this task is none of the cluster\'s: task.type=worker task.index=1', 'index from 0 to 0'),
    ('{"cluster": {"worker": ["a:1", "a:1"]}}',
     'an address is there twice: cluster.worker[1]=a:1, as cluster.worker[0]', 'its own'),
])
def test_wrong(text, found, remedy):
  finding = tf_config_check.check(text)
  assert finding.level == 'error'
  assert finding.found.startswith(found) and remedy in finding.remedy
