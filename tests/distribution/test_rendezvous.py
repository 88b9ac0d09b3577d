"""The members of a cluster find each other, whatever else comes to their ports."""

import contextlib
import hmac
import json
import socket

import pytest
from cluster_processes import free_addresses
from conftest import wait_until
from peer_helpers import SECS, joining, workers

from estimator_train.distribution import rendezvous, sockets
from estimator_train.errors import PeerLost, UserError


@pytest.fixture
def join():
  with joining() as join:
    yield join


def port_of(addresses):
  """Returns the port of the first task."""
  return int(list(addresses.values())[0][0].rpartition(':')[2])


def server_of(addresses):
  """Returns a listener on the chief's port."""
  server = sockets.open_listener(port_of(addresses))
  server.settimeout(SECS)
  return server


def call(addresses):
  """Returns a plain connection to the chief's port."""
  return socket.create_connection(('127.0.0.1', port_of(addresses)), timeout=SECS)


@contextlib.contextmanager
def stranger(addresses, index, values=(), key=b''):
  """Registers a process as a worker, and yields what it receives, and first the chief's answer."""
  with call(addresses) as connection, connection.makefile('rb', buffering=0) as received:
    values = dict(values, TF_CONFIG='{} worker'.format(len(addresses['worker'])))
    challenge = json.loads(received.readline().decode())['challenge']
    proof = make_proof(key, 'member', challenge, index)
    send(connection, task=['worker', index], challenge='ours', proof=proof)
    answer = received.readline()
    if b'wrong_key' not in answer:
      assert json.loads(answer.decode()) == {'proof': make_proof(key, 'chief', challenge, index)}
      send(connection, values=values)
      answer = received.readline()
    yield received, answer


def make_proof(key, sender, challenge, index):
  text = json.dumps([sender, challenge, 'ours', 'worker', index])
  return hmac.new(key, text.encode(), 'sha256').hexdigest()


def send(connection, **message):
  connection.sendall(json.dumps(message).encode() + b'\n')


def assert_connected(*members):
  for member in members:
    assert member.peers() is not None


@pytest.mark.parametrize('host, counts', [
    ('localhost', {'chief': 1, 'worker': 2, 'ps': 1}), ('[::1]', {'worker': 2})],
                         ids=['all types', 'IPv6'])
def test_all_are_connected_and_the_port_is_free(join, host, counts):
  addresses = {kind: [each.replace('127.0.0.1', host) for each in free_addresses(count)]
               for kind, count in counts.items()}
  members = [join(addresses, index, kind) for kind, count in counts.items()
             for index in range(count)]
  members[-1].peers()
  with socket.socket() as listener:  # The chief has closed the port before it released any task.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As gRPC does.
    listener.bind(('0.0.0.0', port_of(addresses)))
    listener.listen(1)
  assert_connected(*members)


@pytest.mark.parametrize('late', [0, 2])
def test_all_know_who_is_late_and_wait(join, monkeypatch, late):
  monkeypatch.setattr(sockets, '_LOG_EVERY_SECS', .1)
  addresses = workers(3)
  early = [join(addresses, index) for index in range(3) if index != late]
  wait_until(lambda: all(any('waiting for worker {}'.format(late) in line for line in member.log)
                         for member in early))
  assert not any(member.is_done for member in early)
  assert_connected(join(addresses, late), *early)
  assert early[0].log[0].endswith(' s of at most {}'.format(SECS))


@pytest.mark.parametrize('host', ['127.0.0.1', 'no.such.host.invalid', 'a..b'])
def test_nobody_comes(join, monkeypatch, host):
  class Unlucky(socket.socket):
    """Gets the very port that it connects to, so that it is connected to itself."""

    def connect(self, address):
      self.bind(address)
      super().connect(address)

  address = '{}:{}'.format(host, port_of(workers(1)))
  monkeypatch.setattr(sockets.socket, 'socket', Unlucky)
  member = join({'worker': [address, 'localhost:1']}, 1, secs=.5)
  with pytest.raises(PeerLost, match='gave up waiting for worker 0 at {} after'.format(address)):
    member.peers()
  assert member.log == []  # It logs once a minute.


LONG = ','.join('class {}'.format(index) for index in range(20000))
OURS = {'--batch_size': '128', '--labels': LONG, '--seed': '1'}


@pytest.mark.parametrize('changes, message, logged', [
    ({'--batch_size': '64'}, '--batch_size=64 here and another value on the chief, whose log has',
     'it has --batch_size=64, the chief has 128'),
    ({'numpy': '1.2'}, 'numpy=1.2 here and none on the', 'it has numpy=1.2, the chief has None'),
    ({'--labels': LONG + ',more'}, '--labels=class 0,class 1,', 'it has --labels=class 0,class 1,'),
    (None, 'TF_CONFIG=3 worker here and another value on the', 'it has TF_CONFIG=3 worker')])
def test_others_are_refused_and_the_right_ones_awaited(join, changes, message, logged):
  addresses = workers(2)
  chief = join(addresses, values=OURS)
  values = {name: value for name, value in dict(OURS, **(changes or {})).items() if value}
  theirs = addresses if changes else {'worker': addresses['worker'] + ['localhost:1']}
  with pytest.raises(UserError) as caught:
    join(theirs, 1, values=values).peers()
  assert message in str(caught.value)
  assert chief.log[0].startswith('refused worker 1: ' + logged) and len(chief.log[0]) < 600
  assert not chief.is_done
  assert_connected(join(addresses, 1, values=OURS), chief)


def test_strangers_learn_no_value_and_fill_no_log(join):
  addresses = workers(2)
  chief = join(addresses, values={'--data_dir': '/secret', '--seed': '4711'})
  for _ in range(40):
    values = {'--data_dir\x1b[2J\n' + 'x' * 5000: 'a\nerror: forged ' + 'y' * 10000}
    with stranger(addresses, 1, values) as (_, answer):
      assert b'refused' in answer and b'secret' not in answer and b'4711' not in answer
  assert chief.log[-1] == 'refused further processes, which are not logged'
  assert len(chief.log) == 21 and all(
      len(line) < 300 and line.isprintable() for line in chief.log), chief.log


def test_the_key_of_the_cluster(join):
  addresses = workers(2)
  chief = join(addresses, key='our key')
  for key, shown in (('', 'not set'), ('another', 'set')):
    with stranger(addresses, 1, key=key.encode()) as (_, answer):
      assert answer == b'{"wrong_key": true}\n'
    with pytest.raises(UserError, match=(
        'this worker must have the key of the chief: ESTIMATOR_TRAIN_CLUSTER_KEY is {} here, and '
        'not the same on the chief: set it to the same value'.format(shown))):
      join(addresses, 1, key=key).peers()
  assert set(chief.log) == {'refused worker 1: it has another ESTIMATOR_TRAIN_CLUSTER_KEY'}
  assert_connected(join(addresses, 1, key='our key'), chief)


def test_a_chief_without_the_key_learns_no_value(join):
  addresses = workers(2)
  with server_of(addresses) as server:
    member = join(addresses, 1, values={'--data_dir': '/secret'}, key='our key')
    with server.accept()[0] as connection:
      for message in ({'go': True}, {'refused': '--data_dir'}, {'taken': True},
                      {'challenge': 'theirs'}, {'proof': '\xe9'}):
        send(connection, **message)
      with pytest.raises(UserError, match='this worker must have the key of the chief'):
        member.peers()
      assert set(json.load(connection.makefile())) == {'task', 'challenge', 'proof'}


@pytest.mark.parametrize('host, key, is_logged', [
    ('127.0.0.2', '', False), ('example', '', True), ('example', 'key', False)])
def test_a_port_that_others_can_reach_is_logged(join, host, key, is_logged):
  port = port_of(workers(1))
  chief = join({'worker': ['{}:{}'.format(host, port), 'localhost:1']}, secs=.5, key=key)
  with pytest.raises(PeerLost):
    chief.peers()
  assert chief.log == is_logged * [
      '{}:{} accepts every process that has the same flags, because ESTIMATOR_TRAIN_CLUSTER_KEY '
      'is not set'.format(host, port)]


@pytest.mark.parametrize('claims', [0, 1])
def test_the_last_of_several_processes_keeps_a_task(join, claims):
  """The task of the chief, and one that the cluster does not have, are not given away."""
  addresses = workers(3)
  chief = join(addresses)
  with stranger(addresses, claims) as (received, answer):
    first, last = (join(addresses, 1) for _ in range(2))
    wait_until(lambda: first.is_done or last.is_done)
    refused, kept = (first, last) if first.is_done else (last, first)
    with pytest.raises(UserError, match='another process runs as worker 1: TF_CONFIG: '
                       'task.type=worker task.index=1: stop that process'):
      refused.peers()
    assert 'another process has started as worker 1' in chief.log
    if claims == 1:
      assert b'missing' in answer
      assert b'{"taken": true}\n' in received.readlines()
    else:
      assert answer == b'{"taken": true}\n'
  assert_connected(join(addresses, 2), kept, chief)


@pytest.mark.parametrize('is_gone', [True, False], ids=['gone', 'silent'])
def test_a_lost_process_is_replaced(join, monkeypatch, is_gone):
  monkeypatch.setattr(rendezvous, '_SILENCE_TIMEOUT_SECS', 60 if is_gone else 1)
  monkeypatch.setattr(rendezvous, '_HEARTBEAT_SECS', .1)
  addresses = workers(3)
  chief = join(addresses)
  with stranger(addresses, 1) as (received, _):
    if not is_gone:
      received.readlines()  # Until the chief closes the connection.
  assert_connected(join(addresses, 2), join(addresses, 1), chief)


GARBAGE = (
    b'', b'GET / HTTP/1.0\r\n\r\n', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0',
    b'x' * 100000, b'[' * 60000 + b'\n', b'[1]\n{}\n',
    b'{"task": [{}, 1], "values": 3}\n', b'\xff\n',
    b'{"task": ["worker", 1], "values": {"TF_CONFIG": "2 worker"}, "proof": []}\n')


def test_garbage_does_not_disturb(join):
  addresses = workers(2)
  chief = join(addresses, secs=20)
  with contextlib.ExitStack() as connections:
    for garbage in GARBAGE:
      stays, goes = (connections.enter_context(call(addresses)) for _ in range(2))
      for each in (stays, goes):
        with contextlib.suppress(OSError):  # The chief may close the connection before.
          each.sendall(garbage)
      goes.close()
    assert_connected(join(addresses, 1), chief)


def test_chiefs_port_answers_otherwise(join, monkeypatch):
  monkeypatch.setattr(rendezvous, '_ANSWER_TIMEOUT_SECS', .3)
  addresses = workers(2)
  with server_of(addresses) as server:
    member = join(addresses, 1)
    for answer in (b'\0\0\x12\4\0\0\0\0\0\0', b'hello\n', b''):
      with server.accept()[0] as connection:
        connection.sendall(answer)
  assert_connected(join(addresses), member)
