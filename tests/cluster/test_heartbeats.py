"""Who is lost, who is busy, where all stop and who has finished."""

import contextlib
import itertools
import json
import socket

import pytest
from peer_helpers import SECS, in_thread, joining, wait_until, workers

from estimator_train.cluster import heartbeats
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.messages import Connection
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

W0, W1, W2 = (Task('worker', index) for index in range(3))
PS, FAR = Task('ps', 0), Task('worker', 5)


class Other:
  """A peer whose messages the test sends and receives."""

  def __init__(self):
    with socket.socket() as listener:
      listener.bind(('127.0.0.1', 0))
      listener.listen(1)
      self.connection = Connection(socket.create_connection(listener.getsockname()))
      self._far = listener.accept()[0]
    self._far.settimeout(SECS)
    self._lines = self._far.makefile('rb')

  def send(self, line=b'', **message):
    self._far.sendall(line or json.dumps(message).encode() + b'\n')

  def receive(self, **expected):
    """Returns the next message that has these values."""
    for line in self._lines:
      message = json.loads(line.decode())
      if expected.items() <= message.items():
        return message
    raise AssertionError('no message has {}'.format(expected))

  def close(self):
    """Ends the connection in order: `close` alone resets it if a message has not been read."""
    with contextlib.suppress(OSError):
      self._far.shutdown(socket.SHUT_WR)


@pytest.fixture
def others():
  others = {W1: Other(), W2: Other()}
  yield others
  for other in others.values():
    other.close()


@pytest.fixture
def make(others):
  """Makes the Peers of worker 0, the chief, and the list of its losses."""
  made, lost = [], []

  def make_peers(timeout_secs=None, task=W0, chief=W0, **options):
    made.append(Peers(task, chief, {task: other.connection for task, other in others.items()},
                      **options))
    if timeout_secs:
      made[0].set_lost_task_handler(timeout_secs, lambda *loss: lost.append(loss))
    return made[0], lost

  yield make_peers
  for other in others.values():
    other.close()
  for peers in made:
    peers.finish()


ENDED, BY_2 = 'its connection ended', ' (reported by worker 2)'


@pytest.mark.parametrize('events, expected', [
    ([(W1, None)], (W1, ENDED)),
    ([(W1, {'lost': W1, 'reason': 'stopped by SIGTERM'}), (W1, None)], (W1, 'stopped by SIGTERM')),
    ([(W2, {'lost': PS, 'reason': ENDED})], (PS, ENDED + BY_2)),
    # Worker 1 has learned of the loss before, and has ended because of it.
    ([(W1, None), (W2, {'lost': PS, 'reason': ENDED})], (PS, ENDED + BY_2)),
    ([(W2, {'lost': PS, 'reason': 'x (reported by ps 9)'})], (PS, 'x (reported by ps 9)')),
    ([(W2, {'lost': PS, 'reason': 'x' * 9999})], (PS, 'x' * 200 + BY_2)),
    ([(W2, {'lost': W0, 'reason': 'no message'})],
     (W0, 'this task was reported as lost by worker 2 (no message); the longest time in which '
      'this task read no messages was 0.1 s')),
    ([(W1, b'[1]\n')], (W1, 'it uses another protocol')),
    ([(W1, b'\xff\n')], (W1, 'it uses another protocol')),
    ([(W1, b'x' * 70000)], (W1, 'it sent more than 65536 bytes in one message'))])
def test_the_first_lost_task(make, others, events, expected):
  for task, event in events:
    if event is None:
      others[task].close()
    elif isinstance(event, bytes):
      others[task].send(event)
    else:
      others[task].send(**event)
  seconds = itertools.count(0, .1)  # Reads the messages that are waiting at once.
  _, lost = make(30, clock=lambda: next(seconds))
  assert others[W2].receive(lost=list(expected[0]))['reason'] == expected[1]
  wait_until(lambda: lost)
  assert lost == [expected]


def test_silence_and_goodbye(make, others):
  now = [0.]
  peers, lost = make(30, clock=lambda: now[0])
  others[W1].send(bye=True)
  others[W2].receive()
  for secs in (29., 58., 87.):
    now[0] = secs
    others[W2].send(state='at {}'.format(secs))
    wait_until(lambda secs=secs: peers.busy_peer() == (W2, 'at {}'.format(secs)))
    others[W2].receive()  # A heartbeat is sent at each of these times.
  now[0] = 116.
  others[W2].receive(state='starting')
  assert lost == []
  now[0] = 118.
  wait_until(lambda: lost)
  assert lost == [(W2, 'no message from it for 31 s')]


def test_own_pause_is_not_the_others_fault(make, others):
  now = [0.]
  _, lost = make(30, clock=lambda: now[0])
  others[W2].receive(state='starting')
  now[0] = 40.
  wait_until(lambda: lost)
  assert lost == [(W0, 'this task was suspended for 40 s')]


def test_one_that_does_not_listen_blocks_nothing(make, others, monkeypatch):
  monkeypatch.setattr(heartbeats, '_HEARTBEAT_SECS', 0)
  monkeypatch.setattr(heartbeats, '_POLL_SECS', .001)
  peers, lost = make(2)
  peers.announce_state('x' * 1000000)
  others[W2].receive(state='x' * 1000000)
  others[W2].send(state='training')
  wait_until(lambda: peers.busy_peer() != (W2, 'starting'))
  wait_until(lambda: lost)
  assert lost[0][0] == W1


def test_who_is_lost_is_known_to_those_who_wait_and_watch_later(make, others):
  peers, lost = make()
  others[W1].send(bye=True, note={'examples': 7})
  assert peers.wait_until_finished([W0, W1]) == {W1: {'examples': 7}}
  others[W2].close()
  for wait in (peers.wait_until_finished, peers.wait_until_trained):
    with pytest.raises(PeerLost, match='lost worker 2: its connection ended'):
      wait([W0, W1, W2])
  peers.set_lost_task_handler(30, lambda *loss: lost.append(loss))
  wait_until(lambda: lost)
  assert lost == [(W2, ENDED)]


def test_a_stop_step_is_confirmed_by_all(make, others):
  peers, _ = make()
  stopping = in_thread(peers.stop_all_at, 7)
  others[W1].receive(stop_at=7, all_stop_at=None)
  others[W1].send(state='training', stop_at=7)
  others[W2].send(state='training')
  stopping.join(.5)
  assert stopping.is_alive()
  others[W2].send(state='training', stop_at=5)
  others[W1].receive(stop_at=5, all_stop_at=None)
  assert stopping.is_alive()
  others[W1].send(state='training', stop_at=5)
  stopping.join(SECS)
  assert not stopping.is_alive() and peers.stop_step == 5
  others[W2].receive(all_stop_at=5)


def test_finish_misses_nobody(make, others):
  peers, lost = make(30)
  finishing = in_thread(peers.finish, {'examples': 5})
  for other in others.values():
    assert other.receive(bye=True)['note'] == {'examples': 5}
  others[W1].close()
  finishing.join(SECS)  # It does not wait forever for worker 2 to close its connection as well.
  assert lost == [] and not finishing.is_alive()


def test_what_only_the_chief_knows(make, others):
  """A member knows of tasks that are not its peers from the chief, here worker 1."""
  peers, _ = make(task=PS, chief=W1)
  others[W2].send(state='training', busy=[W0, 'saving'], stop_at='soon', all_trained=True)
  waiting = in_thread(peers.wait_until_trained, [W1, W2])
  for invalid in (None, 'worker 5', [['worker', 'x'], 'evaluating'], [FAR], [[[], 5], 'saving']):
    others[W1].send(state='training', busy=[FAR, 'evaluating'])
    wait_until(lambda: peers.busy_peer() == (FAR, 'evaluating'))
    others[W1].send(state='training', busy=invalid)
    wait_until(lambda: peers.busy_peer() is None)
  assert peers.stop_step is None and waiting.is_alive()
  others[W1].send(bye=True, note=['no', 'object'])
  assert peers.wait_until_finished([W1]) == {W1: {}}
  waiting.join(SECS)
  assert not waiting.is_alive()


@pytest.fixture
def five():
  """The Peers of five workers, which are connected; some of them only through the chief."""
  with joining() as join:
    addresses = workers(5)
    members = [join(addresses, index) for index in range(5)]
    yield [member.peers() for member in members]


def test_what_concerns_all_reaches_all(five):
  def all_see(value, get):
    wait_until(lambda: [get(peers) for peers in five if peers.task != W1] == [value] * 4)

  assert all(peers.busy_peer()[1] == 'starting' for peers in five)
  for peers in five:
    peers.announce_state('training')
  all_see(None, Peers.busy_peer)
  # Tasks that are READY or TRAINED are not busy.
  for state in ('ready', 'trained', 'training'):
    five[1].announce_state('saving')
    all_see((W1, 'saving'), Peers.busy_peer)
    assert five[1].busy_peer() is None
    five[1].announce_state(state)
    all_see(None, Peers.busy_peer)

  for sender, step, lowest in ((4, 70, 70), (1, 50, 50), (3, 90, 50)):
    five[sender].stop_all_at(step)  # Returns when all know it.
    assert {peers.stop_step for peers in five} == {lowest}
  five[3].announce_state('saving')  # A message after that with 90.
  wait_until(lambda: five[1].busy_peer() == (Task('worker', 3), 'saving'))
  assert five[1].stop_step == 50

  tasks = [peers.task for peers in five]
  for peers in five[1:]:
    peers.announce_state('trained')
  waiting = [in_thread(peers.wait_until_trained, tasks) for peers in five[1:]]
  waiting[0].join(.5)
  assert all(thread.is_alive() for thread in waiting)
  five[0].announce_state('trained')
  five[0].wait_until_trained(tasks)
  for thread in waiting:
    thread.join(SECS)
    assert not thread.is_alive()


def test_measurements_of_any_size_arrive_or_are_omitted(five, caplog):
  sizes = {1: 1, 2: 60000, 3: 70000, 4: 10 ** 7}
  for index, size in sizes.items():
    in_thread(five[index].finish, {'figures': 'x' * size})
  found = five[0].wait_until_finished([peers.task for peers in five])
  assert found == {Task('worker', index): {'figures': 'x' * size} if size < 65000 else {}
                   for index, size in sizes.items()}
  assert caplog.text.count('measurements of this task are not sent') == 2


def test_a_failure_and_a_late_start(five):
  lost = []
  for peers in five:
    peers.set_lost_task_handler(SECS, lambda *loss: lost.append(loss))
  five[1].announce_state('ready')
  waiting = in_thread(five[2].wait_until_started, W0)
  waiting.join(.5)
  assert waiting.is_alive()
  five[0].announce_state('ready')
  waiting.join(SECS)
  assert not waiting.is_alive()
  five[4].report_failure('the disk is full' + '.' * 10 ** 6)
  wait_until(lambda: len(lost) == 4)
  assert all(task == Task('worker', 4) and reason.startswith('the disk is full...')
             and len(reason) < 300 for task, reason in lost), lost
