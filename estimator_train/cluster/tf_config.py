"""TF_CONFIG: the tasks of a cluster and which of them this process is, checked before TensorFlow.

TensorFlow itself answers most mistakes in it by waiting for ever.
"""

import ipaddress
import json
import re
import socket
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from estimator_train.cluster import network
from estimator_train.errors import UserError

PREFIX = 'TF_CONFIG: '
TYPES = ('chief', 'worker', 'ps', 'evaluator')
_SINGLE = ('chief', 'evaluator')
_FORM = ('give {"cluster": {"worker": ["HOST:PORT", ...]}, '
         '"task": {"type": "worker", "index": 0}}, or unset it to train on this machine alone')
_HOST = re.compile(r'[A-Za-z0-9_.-]+')
_SHOWN = 60


class NoAddress(UserError):
  """A host's name leads nowhere: it is misspelled, or not known yet."""


class Task(NamedTuple):
  """One process of a cluster.

  Attributes:
    type: chief, worker, ps or evaluator.
    index: its place among those of its type.
  """
  type: str
  index: int  # type: ignore[assignment]  # It hides tuple's method, which nobody needs here.

  def __str__(self) -> str:
    return self.type if self.type in _SINGLE else '{} {}'.format(self.type, self.index)


class Cluster(NamedTuple):
  """All tasks of a cluster, and which of them this process is.

  Attributes:
    addresses: HOST:PORT by type, in the order of the indices.
    task: this one.
  """
  addresses: Dict[str, Tuple[str, ...]]
  task: Task

  @property
  def chief(self) -> Task:
    """The task that writes: the one of that type or, where there is none, worker 0."""
    return Task('chief' if 'chief' in self.addresses else 'worker', 0)

  @property
  def is_chief(self) -> bool:
    """Whether this task is the one that writes."""
    return self.task == self.chief

  @property
  def workers(self) -> Tuple[Task, ...]:
    """The tasks that train: the chief first."""
    return self._of('chief') + self._of('worker')

  @property
  def num_workers(self) -> int:
    """How many tasks train, the chief among them."""
    return len(self.workers)

  @property
  def worker_number(self) -> Optional[int]:
    """The place of this task among `workers`; None for one that does not train."""
    return self.workers.index(self.task) if self.task in self.workers else None

  @property
  def parameter_servers(self) -> Tuple[Task, ...]:
    """The tasks that hold variables."""
    return self._of('ps')

  @property
  def has_evaluator(self) -> bool:
    """Whether a task of its own evaluates the checkpoints."""
    return 'evaluator' in self.addresses

  @property
  def members(self) -> Tuple[Task, ...]:
    """The tasks that must be up to train: all but the evaluator, the chief first."""
    return self.workers + self.parameter_servers

  def address(self, task: Task) -> str:
    """Returns the HOST:PORT of a task.

    Raises:
      KeyError: an evaluator need not have one.
    """
    return self.addresses[task.type][task.index]

  def _of(self, kind: str) -> Tuple[Task, ...]:
    return tuple(Task(kind, index) for index in range(len(self.addresses.get(kind, ()))))


def read(environ: Mapping[str, str]) -> Optional[Cluster]:
  """Returns the cluster of TF_CONFIG; None where it is not set, or names none.

  Args:
    environ: the environment.

  Raises:
    UserError: TF_CONFIG is not what TensorFlow, or the training, could work with.
  """
  text = environ.get('TF_CONFIG', '').strip()
  if not text:
    return None
  try:
    config = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _wrong('it is no JSON', str(error), _FORM) from error
  if not isinstance(config, dict):
    raise _wrong('it is no JSON object', _shown(config), _FORM)
  for field in ('cluster', 'task'):
    if not isinstance(config.get(field, {}), dict):
      raise _wrong('{} is no object'.format(field), _shown(config[field]), _FORM)
  if not config.get('cluster'):
    return None
  addresses = _addresses(config['cluster'])
  return Cluster(addresses, _task(config.get('task', {}), addresses))


def check_for(cluster: Cluster, strategy: str) -> None:
  """Raises a UserError when a --distribution_strategy cannot train on the cluster."""
  servers = ['cluster.ps[{}]={}'.format(task.index, cluster.address(task))
             for task in cluster.parameter_servers]
  if strategy == 'multi_worker_mirrored':
    if servers:
      raise _wrong('--distribution_strategy=multi_worker_mirrored has no parameter servers',
                   servers[0], 'leave cluster.ps out, or give '
                   '--distribution_strategy=parameter_server')
  elif strategy == 'parameter_server':
    for kind, why in (('chief', 'a chief'), ('ps', 'a parameter server')):
      if kind not in cluster.addresses:
        raise _wrong('--distribution_strategy=parameter_server needs ' + why,
                     'cluster has ' + counts(cluster),
                     'add "{}": ["HOST:PORT"] to the cluster of every task'.format(kind))
  elif len(cluster.members) > 1:
    raise _wrong('it names several tasks, and --distribution_strategy={} runs in one'.format(
        strategy), 'cluster has ' + counts(cluster),
        'give --distribution_strategy={} to every task, or unset TF_CONFIG'.format(
            'parameter_server' if servers else 'multi_worker_mirrored'))


def counts(cluster: Cluster) -> str:
  """Returns how many tasks there are of each type, such as `1 chief, 2 worker`."""
  return ', '.join('{} {}'.format(len(cluster.addresses[kind]), kind)
                   for kind in TYPES if kind in cluster.addresses)


def check_network(cluster: Cluster) -> None:
  """Finds out whether this task can have its port, and knows where the others are.

  Raises:
    NoAddress: another's name leads nowhere.
    UserError: the port is taken.
  """
  for task in cluster.members:
    host, port = network.split_address(cluster.address(task))
    if task == cluster.task:
      take_port(cluster).close()
      continue
    try:
      socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
      raise NoAddress(PREFIX + 'a host has no address', '{}={} ({})'.format(
          _field(task.type, task.index), cluster.address(task),
          getattr(error, 'strerror', None) or error),
                      'correct its name, or that of the DNS') from error


def take_port(cluster: Cluster) -> socket.socket:
  """Returns a listener at the port of this task's address.

  Raises:
    UserError: it cannot be had.
  """
  address = cluster.address(cluster.task)
  _, port = network.split_address(address)
  try:
    return network.listen(port)
  except OSError as error:
    raise _wrong('the port of this task cannot be had', '{}={} ({})'.format(
        _field(*cluster.task), address, network.holder(port) or error.strerror or error),
                 'end what has it, or give the task another') from error


def _addresses(cluster: Mapping[str, Any]) -> Dict[str, Tuple[str, ...]]:
  """Returns the addresses by type, checked."""
  fields: Dict[Tuple[str, int], str] = {}
  for kind, listed in cluster.items():
    _check_type('cluster.{}'.format(_shown(kind)), kind)
    name = 'cluster.{}'.format(kind)
    if not isinstance(listed, list) or not listed:
      raise _wrong('a type of task has no list of addresses',
                   '{}={}'.format(name, _shown(listed)), _FORM)
    if kind in _SINGLE and len(listed) > 1:
      raise _wrong('a cluster has one {}'.format(kind),
                   '{} has {} addresses'.format(name, len(listed)), 'leave one there')
    for index, address in enumerate(listed):
      place = _parsed(_field(kind, index), address)
      if place in fields:
        raise _wrong('an address is there twice',
                     '{}={}, as {}'.format(_field(kind, index), address, fields[place]),
                     'give each task its own')
      fields[place] = _field(kind, index)
  if 'chief' not in cluster and 'worker' not in cluster:
    raise _wrong('no task trains', 'cluster has neither chief nor worker', _FORM)
  return {kind: tuple(listed) for kind, listed in cluster.items()}


def _parsed(field: str, address: Any) -> Tuple[str, int]:
  """Returns host and port, checked, and in one spelling."""
  match = isinstance(address, str) and re.fullmatch(r'(.+):([0-9]{1,5})', address)
  given = '{}={}'.format(field, _shown(address))
  if not match:
    raise _wrong('an address is no HOST:PORT', given, 'give one such as host:2222')
  host, port = match.groups()
  if not 1 <= int(port) <= 65535:
    raise _wrong('a port is out of range', given, 'give one from 1 to 65535')
  if host.startswith('[') and host.endswith(']') and _is_ipv6(host[1:-1]):
    return str(ipaddress.IPv6Address(host[1:-1])), int(port)
  if not _HOST.fullmatch(host):
    raise _wrong('an address is no HOST:PORT', given,
                 'give one such as host:2222, without grpc://, and IPv6 as [::1]:2222')
  return host.lower(), int(port)


def _is_ipv6(host: str) -> bool:
  try:
    return bool(ipaddress.IPv6Address(host))
  except ValueError:
    return False


def _task(task: Mapping[str, Any], addresses: Mapping[str, Tuple[str, ...]]) -> Task:
  """Returns the task that this process is, checked."""
  for field in ('type', 'index'):
    if task.get(field) is None:
      raise _wrong('which task this is is not said', 'task.{} is missing'.format(field), _FORM)
  kind, index = task['type'], task['index']
  _check_type('task.type={}'.format(_shown(kind)), kind)
  here = addresses.get(kind, ())
  if not here and kind != 'evaluator':  # TensorFlow does not count that one in.
    raise _wrong('this task is none of the cluster\'s', 'task.type={}, and cluster has {}'.format(
        kind, ', '.join(addresses)), 'add cluster.{}, or correct task.type'.format(kind))
  is_digits = isinstance(index, str) and re.fullmatch('[0-9]{1,9}', index)
  if isinstance(index, bool) or not (isinstance(index, int) or is_digits):
    raise _wrong('task.index is no whole number', 'task.index={}'.format(_shown(index)),
                 'count from 0')
  number, last = int(index), max(len(here), 1) - 1
  if not 0 <= number <= last:
    raise _wrong('this task is none of the cluster\'s', 'task.type={} task.index={}'.format(
        kind, _shown(index)), 'give an index from 0 to {}'.format(last))
  return Task(kind, number)


def _check_type(given: str, kind: Any) -> None:
  if kind == 'master':
    raise _wrong('the type master is of old versions', given, 'write chief in its place')
  if kind not in TYPES:
    raise _wrong('there is no such type of task', given, 'choose from ' + ', '.join(TYPES))


def _field(kind: str, index: int) -> str:
  return 'cluster.{}[{}]'.format(kind, index)


def _shown(value: Any) -> str:
  """Returns a value as an error can show it: short, and without going into what is nested."""
  if isinstance(value, (dict, list)):
    kind = 'an object' if isinstance(value, dict) else 'a list'
    return kind if value else kind + ' with nothing in it'
  text = value if isinstance(value, str) and _HOST.fullmatch(value) else json.dumps(value)
  return text if len(text) <= _SHOWN else text[:_SHOWN] + '...'


def _wrong(what: str, given: str, remedy: str) -> UserError:
  return UserError(PREFIX + what, given, remedy)
