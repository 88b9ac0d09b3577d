"""Who is lost, who is busy and who has finished: one task and what the others say to it."""

import json
import socket
import threading

import pytest
from peer_helpers import SECS, wait_until

from estimator_train.cluster import heartbeats
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.messages import Connection
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

W0, W1, W2, PS = Task('worker', 0), Task('worker', 1), Task('worker', 2), Task('ps', 0)


class Other:
  """The far end of a connection, on which the test speaks."""

  def __init__(self):
    with socket.socket() as listener:
      listener.bind(('127.0.0.1', 0))
      listener.listen(1)
      self.near = socket.create_connection(listener.getsockname())
      self.far = listener.accept()[0]
    self.far.settimeout(SECS)
    self._heard = self.far.makefile('rb')

  def say(self, **message):
    self.far.sendall(json.dumps(message).encode() + b'\n')

  def hear(self, key):
    """Returns the next message with the key; the messages end without it: an AssertionError."""
    for line in self._heard:
      if key in json.loads(line.decode()):
        return json.loads(line.decode())
    raise AssertionError('it did not say ' + key)

  def close(self):
    self._heard.close()
    self.far.close()


@pytest.fixture
def others():
  others = {W1: Other(), W2: Other()}
  yield others
  for other in others.values():
    other.close()


@pytest.fixture
def make(others):
  """Makes worker 0 among others; it is watched, and its losses kept, where that is asked for."""
  made = []

  def make_peers(timeout_secs=None, task=W0, chief=W0, **arguments):
    peers = Peers(task, chief, {task: Connection(other.near) for task, other in others.items()},
                  **arguments)
    made.append(peers)
    peers.lost = []
    if timeout_secs:
      peers.set_lost_task_handler(timeout_secs, lambda *loss: peers.lost.append(loss))
    return peers

  yield make_peers
  for other in others.values():
    other.close()
  for peers in made:
    peers.finish()


def losses(peers):
  """Returns what was reported, once something was and no more can be."""
  wait_until(lambda: peers.lost)
  peers._thread.join(SECS)
  assert not peers._thread.is_alive()
  return peers.lost


def test_busy_until_all_train(make, others):
  peers = make()
  assert peers.busy_peer() == (W1, 'starting')
  others[W1].say(state='training')
  wait_until(lambda: peers.busy_peer() == (W2, 'starting'))
  others[W2].say(state='training')
  wait_until(lambda: peers.busy_peer() is None)
  others[W1].say(state='evaluating')
  wait_until(lambda: peers.busy_peer() == (W1, 'evaluating'))
  others[W1].say(bye=True)
  wait_until(lambda: peers.busy_peer() is None)


def test_state_is_told(make, others):
  peers = make()
  assert others[W1].hear('state') == {
      'state': 'starting', 'stop_at': None, 'all_trained': False,
      'busy': [['worker', 2], 'starting']}
  peers.announce_state('saving')
  wait_until(lambda: others[W1].hear('state')['state'] == 'saving')


def test_connection_ends(make, others):
  peers = make(30)
  others[W1].close()
  assert losses(peers) == [(W1, 'its connection ended')]
  assert others[W2].hear('lost') == {'lost': ['worker', 1], 'reason': 'its connection ended'}


def test_what_was_lost_before_it_is_watched(make, others):
  peers = make()
  others[W1].close()
  with pytest.raises(PeerLost, match='lost worker 1: its connection ended'):
    peers.wait_until_finished([W2])
  peers.set_lost_task_handler(30, lambda *loss: peers.lost.append(loss))
  assert losses(peers) == [(W1, 'its connection ended')]


def test_silence(make, others):
  peers = make(1.5)
  for _ in range(2):  # At once and after a second.
    others[W1].hear('state')
    others[W1].say(unknown='word')
  (task, reason), = losses(peers)
  assert (task, reason) == (W2, 'no message from it for 2 s')


def test_one_that_does_not_listen_blocks_nothing(make, others, monkeypatch):
  monkeypatch.setattr(heartbeats, '_HEARTBEAT_SECS', 0)
  monkeypatch.setattr(heartbeats, '_POLL_SECS', .001)
  peers = make(2, clock=heartbeats.boot_clock)
  peers.announce_state('x' * 1000000)
  wait_until(lambda: others[W2].hear('state')['state'] != 'starting')
  others[W2].say(state='training')
  wait_until(lambda: peers.busy_peer() != (W2, 'starting'))
  assert losses(peers)[0][0] == W1


def test_cause_comes_before_its_consequence(make, others):
  peers = make(30)
  others[W1].close()  # It has heard of the loss of the server first, and ends because of that.
  wait_until(lambda: peers._peers[W1].ended_at is not None)
  others[W2].say(lost=list(PS), reason='its connection ended')
  assert losses(peers) == [(PS, 'its connection ended (reported by worker 2)')]


def test_one_that_leaves_says_why(make, others):
  peers = make(30)
  others[W1].say(lost=list(W1), reason='stopped by SIGTERM')
  others[W1].close()
  assert losses(peers) == [(W1, 'stopped by SIGTERM')]


def test_leave_tells_all(make, others):
  peers = make(30)
  leaving = threading.Thread(target=peers.report_failure, args=['the loss is nan'])
  leaving.start()
  for other in others.values():
    assert other.hear('lost') == {'lost': ['worker', 0], 'reason': 'the loss is nan'}
    other.close()
  leaving.join(SECS)
  assert not leaving.is_alive() and peers.lost == []


def test_given_up_by_others(make, others):
  peers = make(30)
  others[W2].say(lost=list(W0), reason='no message from it for 30 s')
  (task, reason), = losses(peers)
  assert task == W0
  assert reason.startswith(
      'this task was reported as lost by worker 2 (no message from it for 30 s); the longest')


def test_own_pause_is_not_the_others_fault(make):
  times = [0.]
  peers = make(30, clock=lambda: times[0])
  times[0] = 40.
  (task, reason), = losses(peers)
  assert (task, reason) == (W0, 'this task was suspended for 40 s')


def test_short_pause_is_nothing(make, others):
  times = [0.]
  peers = make(30, clock=lambda: times[0])
  for now in (29., 58., 87.):
    for other in others.values():
      other.say(state='training')
    times[0] = now
    others[W1].hear('state')
    wait_until(lambda now=now: peers._polled_at == now)
  assert peers._thread.is_alive() and peers.lost == []


def test_goodbye_is_no_loss(make, others, monkeypatch):
  monkeypatch.setattr(heartbeats, '_GRACE_SECS', 0.)
  monkeypatch.setattr(heartbeats, '_HEARTBEAT_SECS', .3)
  peers = make(1)
  others[W1].say(bye=True)
  peers.wait_until_finished([W0, W1])
  others[W1].close()
  for _ in range(5):  # Which takes longer than a silence may last.
    others[W2].say(state='training')
    others[W2].hear('state')
  assert peers.lost == []


def test_waiting_ends_with_the_last_goodbye(make, others):
  peers = make(30)
  others[W1].say(bye=True)
  wait_until(lambda: peers._peers[W1].is_finished)
  with pytest.raises(PeerLost, match='lost worker 2: '):
    others[W2].close()
    peers.wait_until_finished([W1, W2])


def test_finish_says_goodbye_and_misses_nobody(make, others):
  peers = make(30)
  finishing = threading.Thread(target=peers.finish)
  finishing.start()
  assert others[W1].hear('bye') and others[W2].hear('bye')
  others[W1].close()
  finishing.join(SECS)  # It does not wait for ever for worker 2 to hang up as well.
  assert peers.lost == [] and not peers._thread.is_alive()


@pytest.mark.parametrize('line', [b'[1]\n', b'x' * 70000, b'\xff\n'], ids=['list', 'long', 'bytes'])
def test_what_is_no_message_ends_the_connection(make, others, line):
  peers = make(30)
  others[W1].far.sendall(line)
  (task, reason), = losses(peers)
  assert task == W1 and ('another protocol' in reason or 'more than 65536 bytes' in reason)


@pytest.mark.parametrize('state, is_busy', [
    ('starting', True), ('ready', False), ('training', False), ('trained', False),
    ('evaluating', True)])
def test_who_may_take_long(make, others, state, is_busy):
  peers = make()
  others[W2].say(state='training')
  others[W1].say(state=state, stop_at=1)
  wait_until(lambda: peers.stop_step == 1 and peers.busy_peer() != (W2, 'starting'))
  assert peers.busy_peer() == ((W1, state) if is_busy else None)


def test_the_first_step_that_anyone_wants_to_stop_at(make, others):
  peers = make()
  assert peers.stop_step is None
  peers.stop_all_at(70)
  message = others[W1].hear('stop_at')
  while message['stop_at'] is None:  # Of a beat before.
    message = others[W1].hear('stop_at')
  assert message['stop_at'] == peers.stop_step == 70
  others[W2].say(state='training', stop_at=50)
  wait_until(lambda: peers.stop_step == 50)
  others[W1].say(state='training', stop_at=90)
  others[W2].say(state='training', stop_at='soon')
  wait_until(lambda: peers.busy_peer() is None)
  assert peers.stop_step == 50


def test_waits_until_the_chief_has_started(make, others):
  peers = make()
  waits = threading.Thread(target=peers.wait_until_started, args=(W1,), daemon=True)
  waits.start()
  others[W2].say(state='ready')
  waits.join(.5)
  assert waits.is_alive()
  others[W1].say(state='ready')
  waits.join(SECS)
  assert not waits.is_alive()


def test_waits_until_all_have_trained(make, others):
  peers = make()
  waits = threading.Thread(target=peers.wait_until_trained, args=([W0, W1, W2],), daemon=True)
  waits.start()
  others[W1].say(state='trained')
  others[W2].say(state='training')
  waits.join(.5)
  assert waits.is_alive()
  others[W2].say(bye=True)
  waits.join(SECS)
  assert not waits.is_alive()


def test_what_is_left_with_a_goodbye(make, others):
  peers = make()
  others[W1].say(bye=True, note={'examples': 7})
  others[W2].say(bye=True, note=['no', 'object'])
  assert peers.wait_until_finished([W0, W1, W2]) == {W1: {'examples': 7}, W2: {}}
  peers.finish({'examples': 5})


def test_a_goodbye_takes_a_note_along(make, others):
  peers = make()
  said = threading.Thread(target=peers.finish, args=({'examples': 5},), daemon=True)
  said.start()
  assert others[W1].hear('bye')['note'] == {'examples': 5}


@pytest.mark.parametrize('size, is_sent', [(60000, True), (70000, False), (10 ** 7, False)])
def test_measurements_of_any_size_are_no_loss(make, others, size, is_sent, caplog):
  peers = make()
  threading.Thread(target=peers.finish, args=({'figures': 'x' * size},), daemon=True).start()
  assert bool(others[W1].hear('bye')['note']) == is_sent
  assert ('not sent' in caplog.text) != is_sent


def test_a_long_reason_of_a_failure_arrives(make, others):
  threading.Thread(target=make().report_failure, args=('x' * 10 ** 6,), daemon=True).start()
  assert len(others[W1].hear('lost')['reason']) <= 200


def test_the_chief_passes_on_what_its_peers_send(make, others):
  make()
  others[W1].say(state='evaluating', stop_at=50)
  others[W2].say(state='training')
  message = others[W2].hear('stop_at')
  while message['stop_at'] is None or message['busy'] != [['worker', 1], 'evaluating']:
    message = others[W2].hear('stop_at')
  assert message['stop_at'] == 50
  # A task is not busy because of itself.
  wait_until(lambda: others[W1].hear('busy')['busy'] is None)


def test_the_chief_reports_that_all_have_trained(make, others):
  peers = make()
  peers.announce_state('trained')
  waits = threading.Thread(target=peers.wait_until_trained, args=([W0, W1, W2],), daemon=True)
  waits.start()
  others[W1].say(state='trained')
  assert others[W1].hear('all_trained')['all_trained'] is False
  others[W2].say(state='trained')
  wait_until(lambda: others[W1].hear('all_trained')['all_trained'])
  waits.join(SECS)
  assert not waits.is_alive()


@pytest.mark.parametrize('report', [{'state': 'trained', 'all_trained': True}, {'bye': True}],
                         ids=['all trained', 'finished'])
def test_a_member_waits_until_the_chief_knows_that_all_have_trained(make, others, report):
  peers = make(task=PS, chief=W1)
  waits = threading.Thread(target=peers.wait_until_trained, args=([W1, W2],), daemon=True)
  waits.start()
  for other in others.values():
    other.say(state='trained', all_trained=False)
  others[W2].say(state='trained', all_trained=True)  # Only the chief knows all tasks.
  waits.join(.5)
  assert waits.is_alive()
  others[W1].say(**report)
  waits.join(SECS)
  assert not waits.is_alive()


def test_a_member_knows_the_busy_tasks_from_the_chief(make, others):
  peers = make(task=PS, chief=W1)
  others[W2].say(state='training', busy=[['worker', 7], 'saving'])
  others[W1].say(state='training', busy=[['worker', 5], 'evaluating'])
  wait_until(lambda: peers.busy_peer() == (Task('worker', 5), 'evaluating'))
  for busy in (None, 'worker 5', [['worker', 'x'], 'evaluating'], [['worker', 5]]):
    others[W1].say(state='training', busy=[['worker', 5], 'evaluating'])
    wait_until(peers.busy_peer)
    others[W1].say(state='training', busy=busy)
    wait_until(lambda: peers.busy_peer() is None)
  others[W1].say(state='training', busy=[['worker', 5], 'evaluating'])
  wait_until(peers.busy_peer)
  others[W1].say(bye=True)
  wait_until(lambda: peers.busy_peer() is None)


def test_a_reason_names_only_the_first_task_that_reported_it(make, others):
  peers = make(30)
  others[W2].say(lost=list(PS), reason='its connection ended (reported by worker 9)')
  assert others[W1].hear('lost') == {'lost': ['ps', 0],
                                     'reason': 'its connection ended (reported by worker 9)'}
  assert losses(peers) == [(PS, 'its connection ended (reported by worker 9)')]
