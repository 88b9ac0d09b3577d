"""The members of a cluster find each other, whatever else comes to their ports."""

import contextlib
import json
import socket
import threading

import pytest
from peer_helpers import SECS, Started, cluster_of, free_ports, wait_until, workers

from estimator_train.cluster import chief_rendezvous, member_rendezvous, start_timeout
from estimator_train.cluster.mesh import find_neighbors, find_peers
from estimator_train.cluster.messages import wait_readable
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost, UserError

W0, W1 = (Task('worker', index) for index in range(2))


@pytest.fixture
def start():
  """Starts the rendezvous of a task, and ends its peers with the test."""
  started = []

  def begin(addresses, kind='worker', index=0, **arguments):
    started.append(Started(cluster_of(addresses, kind, index), **arguments))
    return started[-1]

  yield begin
  for each in started:
    if each.peers is not None:
      threading.Thread(target=each.peers.finish).start()


def call(addresses, index=0):
  """Returns a plain connection to a worker's port, once somebody listens."""
  port = int(addresses['worker'][index].rpartition(':')[2])
  found = []

  def try_it():
    try:
      found.append(socket.create_connection(('127.0.0.1', port), timeout=SECS))
    except OSError:
      pass
    return found

  wait_until(try_it)
  return found[0]


def hello(addresses, index, port=1):
  """Returns a connection by which a task, not ours, is registered at the chief."""
  connection = call(addresses)
  values = {'TF_CONFIG': '{} worker'.format(len(addresses['worker']))}
  connection.sendall(json.dumps({'hello': 1, 'task': ['worker', index], 'facts': values,
                                 'port': port}).encode() + b'\n')
  read_until(connection, b'\n', 1)  # No more than the answer: what follows is the test's to read.
  return connection


def read_until(connection, word, at_once=10000):
  seen = b''
  while word not in seen:
    data = connection.recv(at_once)
    assert data, seen
    seen += data
  return seen


@contextlib.contextmanager
def hello_and_beat(addresses, index):
  """A registered task that is heard of each moment, though it never joins the mesh."""
  stopped = threading.Event()
  with hello(addresses, index) as connection:
    def beat():
      while not stopped.wait(.1):
        connection.sendall(b'{"meshed": null}\n')

    thread = threading.Thread(target=beat)
    thread.start()
    try:
      yield
    finally:
      stopped.set()
      thread.join(SECS)


def connected(started):
  return set(started.wait()._peers)


@pytest.mark.parametrize('addresses', [
    pytest.param({'chief': ['localhost'], 'worker': ['127.0.0.1'] * 2, 'ps': ['localhost']},
                 id='all types'),
    pytest.param({'worker': ['[::1]'] * 2}, id='IPv6'),
    pytest.param({'worker': ['localhost']}, id='alone'),
])
def test_all_are_connected_and_the_port_is_free(start, addresses):
  addresses = {kind: ['{}:{}'.format(host, port) for host, port in zip(
      hosts, free_ports(len(hosts)))] for kind, hosts in addresses.items()}
  members = cluster_of(addresses, list(addresses)[0]).members
  started = [start(addresses, *task) for task in members]
  for each in started:
    assert connected(each) == set(find_peers(each.task, members))
  with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As gRPC does.
    listener.bind(('0.0.0.0', int(addresses[members[0].type][0].rpartition(':')[2])))
    listener.listen(1)


@pytest.mark.parametrize('count', [1, 2, 3, 4])
def test_neighbors_are_connected_for_data(start, count):
  addresses = workers(count)
  members = cluster_of(addresses).members
  peers = [each.wait() for each in [
      start(addresses, index=index, with_data=True) for index in range(count)]]
  for task, each in zip(members, peers):
    assert set(each.data_sockets) == set(find_neighbors(task, members)) - {task}
    assert set(each._peers) == set(find_peers(task, members))
    for neighbor, connection in each.data_sockets.items():
      connection.sendall(b'%d to %d' % (task.index, neighbor.index))
  for task, each in zip(members, peers):
    for neighbor, connection in each.data_sockets.items():
      wait_readable([connection], SECS)
      assert connection.recv(100) == b'%d to %d' % (neighbor.index, task.index)
      connection.close()


@pytest.mark.parametrize('count', [1, 2, 3, 4, 5, 100])
def test_the_peers_of_all_members(count):
  members = [Task('worker', index) for index in range(count)]
  peers = {task: find_peers(task, members) for task in members}
  assert set(peers[W0]) == set(members) - {W0}
  for task in members[1:]:
    index = members.index(task)
    assert set(peers[task]) == {
        W0, members[index - 1], members[(index + 1) % count]} and len(peers[task]) <= 3
    assert sorted(peers[task]) == list(peers[task])
    assert all(task in peers[peer] for peer in peers[task])


def test_what_concerns_all_reaches_tasks_that_are_not_connected(start):
  addresses = workers(6)
  peers = [start(addresses, index=index) for index in range(6)]
  peers = [each.wait() for each in peers]
  assert [len(each._peers) for each in peers] == [5, 2, 3, 3, 3, 2]
  for each in peers:
    each.announce_state('training')
  wait_until(lambda: not any(each.busy_peer() for each in peers))
  peers[4].announce_state('saving')
  wait_until(lambda: peers[1].busy_peer() == (Task('worker', 4), 'saving'))
  peers[4].stop_all_at(70)
  wait_until(lambda: [each.stop_step for each in peers] == [70] * 6)
  for each in peers[1:]:
    each.announce_state('trained')
  all_workers = [Task('worker', index) for index in range(6)]
  waits = [threading.Thread(target=each.wait_until_trained, args=(all_workers,), daemon=True)
           for each in peers]
  for thread in waits[1:]:
    thread.start()
  waits[1].join(.5)
  assert all(thread.is_alive() for thread in waits[1:])
  peers[0].announce_state('trained')
  waits[0].start()
  for thread in waits:
    thread.join(SECS)
    assert not thread.is_alive()
  lost = []
  for each in peers:
    each.set_lost_task_handler(SECS, lambda *loss: lost.append(loss))
  peers[4].report_failure('the disk is full')
  wait_until(lambda: len(lost) == 5)
  assert {task for task, _ in lost} == {Task('worker', 4)}
  assert all(reason.startswith('the disk is full') for _, reason in lost)


@pytest.mark.parametrize('late', [0, 2])
def test_all_know_who_is_late_and_wait(start, monkeypatch, late):
  monkeypatch.setattr(start_timeout, '_LOG_EVERY_SECS', .3)
  addresses = workers(3)
  early = [start(addresses, index=index) for index in range(3) if index != late]
  wait_until(lambda: all(any('waiting for worker {}'.format(late) in line for line in each.log)
                         for each in early))
  assert not any(each.is_done for each in early)
  last = start(addresses, index=late)
  for each in early + [last]:
    assert len(connected(each)) == 2
  assert early[0].log[0].endswith(' s of at most {}'.format(SECS))


def test_a_line_a_minute():
  log, times = [], iter([0, 1, 59, 60, 61, 119, 121, 600])
  waiting = start_timeout.StartTimeout(600, log.append, lambda: next(times))
  for _ in range(6):
    waiting.log_or_raise(['worker 1', 'ps 0'])
  assert log == ['waiting for worker 1, ps 0: 60 s of at most 600',
                 'waiting for worker 1, ps 0: 121 s of at most 600']
  with pytest.raises(PeerLost, match=r'waiting for worker 1 after 600 s \(--start_timeout_secs\)$'):
    waiting.log_or_raise(['worker 1'])


def test_many_missing_tasks_are_one_short_line():
  log, times = [], iter([0, 60])
  waiting = start_timeout.StartTimeout(600, log.append, lambda: next(times))
  waiting.log_or_raise(['worker {}'.format(index) for index in range(255)])
  assert log[0].endswith('worker 18, worker 19 and 235 more: 60 s of at most 600')


@pytest.mark.parametrize('index, missing', [(0, 'worker 1, worker 2 after'),
                                            (1, 'worker 0 at localhost:[0-9]* after')])
def test_nobody_comes(start, index, missing):
  with pytest.raises(PeerLost, match=missing):
    start(workers(3), index=index, start_timeout_secs=.5).wait()


@pytest.mark.parametrize('theirs, message, logged', [
    ({'--seed': '1', '--batch_size': '64'},
     'this worker must be started with the flags of the chief: --batch_size=64 here and another '
     'value on the chief, whose log has both: give all tasks the same flags',
     'refused worker 1: it has --batch_size=64, the chief has 128'),
    ({'--seed': '1'}, 'no --batch_size here and another value on',
     'refused worker 1: it has --batch_size=None'),
    ({'--seed': '1', '--batch_size': '128', 'numpy': '1.2'},
     'this worker must match the chief: numpy=1.2 here and none on the chief, whose log has both: '
     'make numpy the same',
     'refused worker 1: it has numpy=1.2, the chief has None'),
])
def test_other_facts_are_refused_and_the_right_ones_awaited(start, theirs, message, logged):
  ours = {'--batch_size': '128', '--seed': '1'}
  addresses = workers(2)
  first = start(addresses, shared_values=ours)
  with pytest.raises(UserError) as caught:
    start(addresses, index=1, shared_values=theirs).wait()
  assert message in str(caught.value) and first.log[0].startswith(logged)
  assert not first.is_done
  assert connected(start(addresses, index=1, shared_values=ours)) == {W0}
  assert connected(first) == {W1}


def test_long_values_are_compared_by_their_digest(start):
  ours, theirs = (','.join('class {}'.format(index) for index in range(count)) + last
                  for count, last in ((20000, 'a'), (20000, 'b')))
  addresses = workers(2)
  first = start(addresses, shared_values={'--labels': ours})
  with pytest.raises(UserError, match=r'--labels=class 0,.*\(SHA-256 .* here and another value'):
    start(addresses, index=1, shared_values={'--labels': theirs}).wait()
  assert len(first.log[0]) < 600
  assert connected(start(addresses, index=1, shared_values={'--labels': ours})) == {W0}


def test_strangers_learn_no_value_and_fill_no_log(start):
  addresses = workers(2)
  first = start(addresses, shared_values={'--data_dir': '/secret', '--seed': '4711'})
  for index in range(40):
    values = {'TF_CONFIG': '2 worker', '--data_dir\x1b[2J\n' + 'x' * 5000: '\r\x1b]0;y' * 5000}
    if index % 2:
      values = {'TF_CONFIG': '2 worker', '--data_dir': 'a\nerror: forged ' + 'y' * 10000}
    with call(addresses) as connection:
      connection.sendall(json.dumps({'task': ['worker', 1], 'facts': values,
                                     'port': 1}).encode() + b'\n')
      answer = read_until(connection, b'\n')
    assert b'refused' in answer and b'secret' not in answer and b'4711' not in answer
  assert first.log[-1] == 'refused further processes, which are not logged'
  assert len(first.log) == 21 and all(
      len(line) < 300 and line.isprintable() for line in first.log), first.log


def test_other_cluster_is_refused(start):
  addresses = workers(2)
  start(addresses)
  message = 'the cluster of the chief: TF_CONFIG=3 worker here and another value on'
  with pytest.raises(UserError, match=message):
    start({'worker': addresses['worker'] + ['localhost:1']}, index=2).wait()


def test_second_of_a_task_is_refused(start):
  addresses = workers(3)
  first, second = start(addresses), start(addresses, index=1)
  with hello_and_beat(addresses, 2), pytest.raises(
      UserError, match='process already runs as worker 2'):
    start(addresses, index=2).wait()
  assert 'refused a second process for worker 2' in first.log
  last = start(addresses, index=2)
  assert [len(connected(each)) for each in (first, second, last)] == [2, 2, 2]


@pytest.mark.parametrize('is_gone', [True, False], ids=['gone', 'silent'])
def test_second_of_a_task_replaces_the_first(start, monkeypatch, is_gone):
  if not is_gone:
    monkeypatch.setattr(chief_rendezvous, '_DUPLICATE_TIMEOUT_SECS', .5)
  addresses = workers(2)
  first = start(addresses)
  with hello(addresses, 1) as older:
    if is_gone:
      older.close()
    assert connected(start(addresses, index=1)) == {W0}
  assert connected(first) == {W1}


def test_lost_while_they_connect(start):
  addresses = workers(3)
  started = [start(addresses), start(addresses, index=1)]
  with hello(addresses, 2) as connection:
    read_until(connection, b'members')
  # Sooner than a task that is not known to be gone would be replaced.
  started.append(start(addresses, index=2, start_timeout_secs=8))
  assert [len(connected(each)) for each in started] == [2, 2, 2]


@pytest.mark.parametrize('garbage', [
    b'', b'GET / HTTP/1.0\r\n\r\n', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0',
    b'x' * 100000, b'[' * 60000 + b'\n', b'[1]\n{}\n', b'{"hello": 1, "task": ["worker", 9]}\n',
    b'{"task": [{}, 1], "facts": 3, "port": "x"}\n', b'{"run": null, "task": ["worker", 1]}\n',
    b'{"task": ["worker", 1], "facts": {}, "port": 1}\n', b'\xff\xfe\n',
    b'{"task": ["worker", 1], "facts": {}, "port": true}\n',
    b'{"task": ["worker", 1], "facts": {"TF_CONFIG": "2 worker"}, "port": 99999}\n',
], ids=lambda garbage: repr(garbage[:20]))
def test_garbage_does_not_disturb(start, garbage):
  addresses = workers(2)
  first = start(addresses, start_timeout_secs=5)
  with call(addresses) as stays, call(addresses) as goes:
    stays.sendall(garbage)
    goes.sendall(garbage)
    goes.close()
    assert connected(start(addresses, index=1)) == {W0}
    assert connected(first) == {W1}


@pytest.mark.parametrize('says', [b'\0\0\x12\4\0\0\0\0\0\0', b'hello\n', b''], ids=repr)
def test_chiefs_port_answers_otherwise(start, monkeypatch, says):
  monkeypatch.setattr(member_rendezvous, '_ANSWER_TIMEOUT_SECS', .3)
  addresses = workers(2)
  port = int(addresses['worker'][0].rpartition(':')[2])
  with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(('127.0.0.1', port))
    server.listen(5)
    server.settimeout(SECS)
    second = start(addresses, index=1)
    for _ in range(2):
      with server.accept()[0] as connection:
        connection.sendall(says)
        while connection.recv(10000):
          pass
  assert connected(start(addresses)) == {W1} and connected(second) == {W0}


def test_chiefs_port_is_taken(start):
  addresses = workers(2)
  with socket.socket() as server:
    server.bind(('127.0.0.1', int(addresses['worker'][0].rpartition(':')[2])))
    server.listen(1)
    with pytest.raises(UserError, match='the port of this task cannot be opened'):
      start(addresses).wait()


def test_nobody_goes_before_all_are_connected(start):
  addresses = workers(3)
  started = [start(addresses), start(addresses, index=1)]
  with hello(addresses, 2) as connection:
    lines = read_until(connection, b'}]}\n').splitlines()
    told = next(json.loads(line.decode()) for line in lines if b'members' in line)
    place = '127.0.0.1', told['members'][0]['port']
    with socket.create_connection(place) as stranger, socket.create_connection(place) as caller:
      stranger.sendall(b'{"run": "another", "task": ["worker", 2]}\n')
      caller.sendall(json.dumps({'run': told['run'], 'task': ['worker', 2],
                                 'channel': 'control'}).encode() + b'\n')
      read_until(caller, b'"task": ["worker", 0]')
      # The chief is connected to all now; worker 1 goes on waiting for worker 2.
      for _ in range(2):
        connection.sendall(b'{"meshed": "another"}\n')
        read_until(connection, b'"missing": []')
      assert not any(each.is_done for each in started)
      stranger.setblocking(False)
      with pytest.raises(BlockingIOError):
        stranger.recv(1)


def test_port_is_free_before_anyone_goes(start, monkeypatch):
  addresses = workers(2)
  port = int(addresses['worker'][0].rpartition(':')[2])
  release, answered = chief_rendezvous._ChiefRendezvous.release_members, []

  def look_first(rendezvous):
    try:
      socket.create_connection(('127.0.0.1', port)).close()
      answered.append(True)
    except OSError:
      answered.append(False)
    release(rendezvous)

  monkeypatch.setattr(chief_rendezvous._ChiefRendezvous, 'release_members', look_first)
  started = [start(addresses, index=index) for index in range(2)]
  assert [len(connected(each)) for each in started] == [1, 1] and answered == [False]
