"""TF_CONFIG: which process of a cluster this is, as TensorFlow and cluster managers tell it."""

import json
import re
from typing import Any, List, Mapping, Optional

from estimator_train.machine.findings import Finding, error, ok

_FORM = ('give {"cluster": {"worker": ["HOST:PORT", ...]}, '
         '"task": {"type": "worker", "index": 0}}, or unset it to train on this machine alone')
_ADDRESS = re.compile(r'[^\s/]+:\d{1,5}$')


def check(text: Optional[str]) -> Finding:
  """Says whether TF_CONFIG has the right form; whether the addresses answer is not asked."""
  if text is None:
    return ok('TF_CONFIG', 'not set: this machine alone')
  try:
    config = json.loads(text)
  except ValueError as broken:
    return error('TF_CONFIG', 'is no JSON ({})'.format(broken), _FORM)
  wrong = _wrong(config)
  if wrong:
    return error('TF_CONFIG', wrong, _FORM)
  cluster, task = config.get('cluster'), config.get('task')
  if not cluster:
    return ok('TF_CONFIG', 'names no cluster: this machine alone')
  return ok('TF_CONFIG', '{} {} of {}'.format(task['type'], task['index'], ', '.join(
      '{} {}'.format(len(hosts), job) for job, hosts in sorted(cluster.items()))))


def _wrong(config: Any) -> str:
  """Returns what is wrong with the form; nothing when it is right."""
  if not isinstance(config, dict):
    return 'is no JSON object'
  cluster, task = config.get('cluster', {}), config.get('task', {})
  if not isinstance(cluster, dict) or not isinstance(task, dict):
    return '"cluster" and "task" must be objects'
  if not cluster:
    return ''
  addresses: List[Any] = []
  for job, hosts in cluster.items():
    if not isinstance(hosts, list) or not hosts:
      return 'the job "{}" has no list of addresses'.format(job)
    addresses.extend(hosts)
  for address in addresses:
    if not isinstance(address, str) or not _ADDRESS.match(address):
      return '{} is no HOST:PORT'.format(json.dumps(address))
  if len(set(addresses)) < len(addresses):
    return 'an address is there twice'
  return _wrong_task(cluster, task)


def _wrong_task(cluster: Mapping[str, List[str]], task: Mapping[str, Any]) -> str:
  job, index = task.get('type'), task.get('index')
  if job == 'evaluator' and index == 0:  # It is no part of the cluster.
    return ''
  if not isinstance(job, str) or job not in cluster:
    return 'the task\'s type {} is none of the cluster\'s jobs'.format(json.dumps(job))
  # TensorFlow takes text as well.
  if not re.match(r'\d+$', str(index)) or int(str(index)) >= len(cluster[job]):
    return 'the task\'s index {} is none of 0 to {}'.format(
        json.dumps(index), len(cluster[job]) - 1)
  return ''
