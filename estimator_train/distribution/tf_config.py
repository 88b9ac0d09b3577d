"""Parses and checks TF_CONFIG, which defines the tasks of a cluster and the task of this process.

The check precedes the start of TensorFlow, which would wait forever after most mistakes.
"""

import contextlib
import ipaddress
import json
import re
import socket
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from estimator_train.distribution import sockets
from estimator_train.errors import UserError

ERROR_PREFIX = 'TF_CONFIG: '
TASK_TYPES = ('chief', 'worker', 'ps', 'evaluator')
_SINGLE_TASK_TYPES = ('chief', 'evaluator')
_OBSOLETE_TASK_TYPES = {'master': 'chief'}  # SageMaker and the old AI Platform write `master`.
_EXAMPLE_REMEDY = (
    'give {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, or '
    'unset TF_CONFIG to train in one process')
_HOST_PATTERN = re.compile(r'[A-Za-z0-9_.-]+')
_MAX_SHOWN_CHARS = 60


class Task(NamedTuple):
  """One process of a cluster.

  Attributes:
    type: one of TASK_TYPES.
    index: the index among the tasks of this type, from 0.
  """
  type: str
  index: int  # type: ignore[assignment]  # The field hides tuple.index, which no code calls.

  def __str__(self) -> str:
    return self.type if self.type in _SINGLE_TASK_TYPES else '{} {}'.format(self.type, self.index)


class Cluster(NamedTuple):
  """The tasks of a cluster.

  Attributes:
    addresses: HOST:PORT of each task, by type, in the order of the indices.
    task: the task of this process.
  """
  addresses: Dict[str, Tuple[str, ...]]
  task: Task

  @property
  def chief(self) -> Task:
    """The task that writes the files of the run: the `chief` or, without one, worker 0."""
    return Task('chief' if 'chief' in self.addresses else 'worker', 0)

  @property
  def is_chief(self) -> bool:
    return self.task == self.chief

  @property
  def workers(self) -> Tuple[Task, ...]:
    """The tasks that train, the chief first."""
    return self._tasks_of_type('chief') + self._tasks_of_type('worker')

  @property
  def rank(self) -> Optional[int]:
    """The index of this task in `workers`; None if this task does not train."""
    return self.workers.index(self.task) if self.task in self.workers else None

  @property
  def local_rank(self) -> int:
    """The index of this task among the workers whose addresses have the same host."""
    hosts = [sockets.split_address(self.address(task))[0] for task in self.workers]
    return hosts[:self.rank or 0].count(hosts[self.rank or 0])

  @property
  def parameter_servers(self) -> Tuple[Task, ...]:
    return self._tasks_of_type('ps')

  @property
  def has_evaluator(self) -> bool:
    return 'evaluator' in self.addresses

  @property
  def members(self) -> Tuple[Task, ...]:
    """All tasks except the evaluator, the chief first."""
    return self.workers + self.parameter_servers

  @property
  def task_summary(self) -> str:
    """The number of tasks of each type as text, such as `1 chief, 2 worker`."""
    return ', '.join('{} {}'.format(len(self.addresses[task_type]), task_type)
                     for task_type in TASK_TYPES if task_type in self.addresses)

  def address(self, task: Task) -> str:
    """Returns the HOST:PORT of a task; raises a KeyError for an evaluator without an address."""
    return self.addresses[task.type][task.index]

  def to_tf_config(self) -> str:
    """Returns the TF_CONFIG for TensorFlow, without obsolete task types."""
    return json.dumps({'cluster': self.addresses, 'task': self.task._asdict()})

  def _tasks_of_type(self, task_type: str) -> Tuple[Task, ...]:
    return tuple(Task(task_type, index) for index in range(len(self.addresses.get(task_type, ()))))


def parse_cluster(environ: Mapping[str, str]) -> Optional[Cluster]:
  """Parses TF_CONFIG; returns None if the variable is not set or contains no cluster."""
  text = environ.get('TF_CONFIG', '').strip()
  if not text:
    return None
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _make_error('it must be JSON', str(error), _EXAMPLE_REMEDY) from error
  if not isinstance(config, dict):
    raise _make_error('it must be a JSON object', _describe_briefly(config), _EXAMPLE_REMEDY)
  for field in ('cluster', 'task'):
    if not isinstance(config.get(field, {}), dict):
      raise _make_error('{} must be an object'.format(field), _describe_briefly(config[field]),
                        _EXAMPLE_REMEDY)
  if not config.get('cluster'):
    _check_task_without_cluster(config)
    return None
  addresses = _parse_addresses(config['cluster'])
  return Cluster(addresses, _parse_task(config.get('task', {}), addresses))


def _check_task_without_cluster(config: Mapping[str, Any]) -> None:
  """Raises a UserError unless the task is worker 0, which RunConfig requires without a cluster."""
  task = config.get('task', {})
  unknown = ['unknown field ' + _describe_briefly(field)
             for field in config if 'cluster' in field.lower() and field != 'cluster']
  if unknown or (task.get('type', 'worker'), str(task.get('index', 0))) != ('worker', '0'):
    found = ['task.{}={}'.format(field, _describe_briefly(task[field]))
             for field in ('type', 'index') if field in task] + unknown
    raise _make_error('it must have a cluster', 'no cluster, but ' + ', '.join(found),
                      _EXAMPLE_REMEDY)


def find_host_name_error(cluster: Cluster) -> Optional[UserError]:
  """Returns an error if the host name of another task cannot be resolved; None otherwise."""
  for task in cluster.members:
    host, port = sockets.split_address(cluster.address(task))
    try:
      if task != cluster.task:
        socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
      return _make_error('a host name cannot be resolved', '{}={} ({})'.format(
          _address_field(*task), cluster.address(task), getattr(error, 'strerror', None) or error),
          'correct the name, or its DNS entry')
  return None


def listen_on_task_port(cluster: Cluster) -> socket.socket:
  """Returns a listener on the port of this task; raises a UserError if it cannot be opened."""
  address = cluster.address(cluster.task)
  _, port = sockets.split_address(address)
  try:
    return sockets.open_listener(port)
  except OSError as error:
    raise _make_error('the port of this task cannot be opened', '{}={} ({})'.format(
        _address_field(*cluster.task), address,
        sockets.describe_listening_process(port) or error.strerror or error),
        'stop the process that uses it, or give the task another port') from error


def _parse_addresses(cluster: Mapping[str, Any]) -> Dict[str, Tuple[str, ...]]:
  """Checks the addresses, and returns them by type of task, without types that have none."""
  addresses: Dict[str, Tuple[str, ...]] = {}
  fields_by_address: Dict[Tuple[str, int], str] = {}
  for type_in_config, type_addresses in cluster.items():
    name = 'cluster.{}'.format(_describe_briefly(type_in_config))
    task_type = _parse_type(name, type_in_config)
    if not isinstance(type_addresses, list) and type_addresses is not None:
      raise _make_error('each type of task must have a list of addresses',
                        '{}={}'.format(name, _describe_briefly(type_addresses)), _EXAMPLE_REMEDY)
    for index, address in enumerate(type_addresses or ()):
      field = _address_field(type_in_config, index)
      host_and_port = _parse_address(field, address)
      if host_and_port in fields_by_address:
        raise _make_error('each task must have its own address', '{}={}, the same as {}'.format(
            field, address, fields_by_address[host_and_port]), 'change one of the two addresses')
      fields_by_address[host_and_port] = field
      addresses[task_type] = addresses.get(task_type, ()) + (address,)
  for task_type in _SINGLE_TASK_TYPES:
    if len(addresses.get(task_type, ())) > 1:
      raise _make_error('a cluster can have only one {}'.format(task_type),
                        'cluster.{} has {} addresses'.format(task_type, len(addresses[task_type])),
                        'keep one of them')
  if 'chief' not in addresses and 'worker' not in addresses:
    raise _make_error('a cluster must have a chief or a worker', 'cluster has neither',
                      _EXAMPLE_REMEDY)
  return addresses


def _parse_address(field: str, address: Any) -> Tuple[str, int]:
  """Returns the host and port, which are equal for two spellings of the same address."""
  match = isinstance(address, str) and re.fullmatch(r'(.+):([0-9]{1,5})', address)
  found = '{}={}'.format(field, _describe_briefly(address))
  if not match:
    raise _make_error('an address must be HOST:PORT', found, 'give one such as host:2222')
  host, port = match.groups()
  if not 1 <= int(port) <= 65535:
    raise _make_error('a port is out of range', found, 'give one from 1 to 65535')
  if host.startswith('[') and host.endswith(']'):
    with contextlib.suppress(ValueError):
      return str(ipaddress.IPv6Address(host[1:-1])), int(port)
  if not _HOST_PATTERN.fullmatch(host):
    raise _make_error('an address must be HOST:PORT', found,
                      'give one such as host:2222 or [::1]:2222, without grpc://')
  return host.lower(), int(port)


def _parse_task(task: Mapping[str, Any], addresses: Mapping[str, Tuple[str, ...]]) -> Task:
  for field in ('type', 'index'):
    if task.get(field) is None:
      raise _make_error('task must have a type and an index', 'task.{} is missing'.format(field),
                        _EXAMPLE_REMEDY)
  index = task['index']
  task_type = _parse_type('task.type={}'.format(_describe_briefly(task['type'])), task['type'])
  type_addresses = addresses.get(task_type, ())
  if not type_addresses and task_type != 'evaluator':  # An evaluator needs no address.
    raise _make_error('this task is not in the cluster', 'task.type={}, and cluster has {}'.format(
        task_type, ', '.join(addresses)), 'add cluster.{}, or correct task.type'.format(task_type))
  is_decimal_text = isinstance(index, str) and re.fullmatch('[0-9]{1,9}', index)
  if isinstance(index, bool) or not (isinstance(index, int) or is_decimal_text):
    raise _make_error('task.index must be a whole number',
                      'task.index={}'.format(_describe_briefly(index)), 'count from 0')
  parsed_index, max_index = int(index), max(len(type_addresses), 1) - 1
  if not 0 <= parsed_index <= max_index:
    raise _make_error('this task is not in the cluster', 'task.type={} task.index={}'.format(
        task_type, _describe_briefly(index)), 'give an index from 0 to {}'.format(max_index))
  return Task(task_type, parsed_index)


def _parse_type(found: str, task_type: Any) -> str:
  """Returns the type of a task, or raises a UserError with the text `found` if it is unknown."""
  if isinstance(task_type, str):
    task_type = _OBSOLETE_TASK_TYPES.get(task_type, task_type)
  if task_type not in TASK_TYPES:
    raise _make_error('unknown task type', found, 'choose from ' + ', '.join(TASK_TYPES))
  return str(task_type)


def _address_field(task_type: str, index: int) -> str:
  return 'cluster.{}[{}]'.format(task_type, index)


def _describe_briefly(value: Any) -> str:
  """Returns the text for an error, without the items of a list and the fields of an object."""
  if isinstance(value, dict):
    return 'an object' if value else 'an empty object'
  if isinstance(value, list):
    return 'a list' if value else 'an empty list'
  text = value if isinstance(value, str) and _HOST_PATTERN.fullmatch(value) else json.dumps(value)
  return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + '...'


def _make_error(rule: str, found: str, remedy: str) -> UserError:
  return UserError(ERROR_PREFIX + rule, found, remedy)
