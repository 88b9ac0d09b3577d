"""The thread that exchanges messages, over connections of members in this process."""

import json
from concurrent import futures
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from conftest import wait_until
from peer_helpers import SECS, in_thread, joining, workers

from estimator_train import errors
from estimator_train.distribution import cluster_peers, sockets
from estimator_train.distribution.cluster_peers import ClusterPeers
from estimator_train.distribution.cluster_state import LostTask
from estimator_train.distribution.engines import HorovodEngine
from estimator_train.distribution.messages import Connection
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.settings import Settings
from estimator_train.version import __version__

W0, W1, W2 = (Task('worker', index) for index in range(3))


@pytest.fixture
def five():
  """Five workers that are connected."""
  with joining() as join:
    addresses = workers(5)
    members = [join(addresses, index) for index in range(5)]
    for member in members:
      member.peers()
    yield members


def test_what_concerns_all_reaches_all(five):
  peers = [member.peers() for member in five]
  waiting = in_thread(peers[2].wait_until_chief_started)
  assert not futures.wait([waiting], .1).done
  for each in peers:
    each.announce_state('training')
  waiting.result(SECS)
  peers[1].announce_state('saving')
  wait_until(lambda: [each.is_another_task_busy() for each in peers] == [
      True, False, True, True, True])
  for sender, step, lowest in ((4, 70, 70), (1, 50, 50), (3, 90, 50), (0, 40, 40)):
    peers[sender].stop_all_at(step)  # Returns when all know it.
    assert {each.stop_step for each in peers} == {lowest}

  for each in peers[1:]:
    each.announce_state('trained')
  waiting = [in_thread(each.wait_until_trained) for each in peers[1:]]
  assert not futures.wait(waiting, .1).done
  peers[0].announce_state('trained')
  peers[0].announce_state('evaluating')
  for each in (*waiting, in_thread(peers[0].wait_until_trained)):
    each.result(SECS)

  # Measurements.
  figures = {Task('worker', index): {'figures': 'x' * size}
             for index, size in ((1, 0), (2, 1), (3, 1000), (4, 60000))}
  finishing = [in_thread(peers[task.index].leave_run, values) for task, values in figures.items()]
  assert peers[0].leave_run() == {str(task): values for task, values in figures.items()}
  for each in finishing:
    each.result(SECS)
  assert not any(member.lost for member in five)


@pytest.mark.parametrize('index', [0, 4])
def test_a_failure_of_one_task(five, index):
  failed = five.pop(index)
  failed.peers().report_failure('the disk is full' + '.' * 10 ** 6, 3)
  wait_until(lambda: all(member.lost for member in five))
  for member in five:
    (task, reason, code), = member.lost
    assert code == 3
    assert task == failed.cluster.task and len(reason) <= 200
    assert reason.startswith('the disk is full...')
    for wait in (member.peers().wait_until_trained, member.peers().wait_for_goodbyes):
      with pytest.raises(errors.PeerLost, match='{} failed: '.format(task)) as caught:
        wait()
      assert caught.value.exit_code == 3
  assert failed.lost == []


@pytest.fixture
def chief():
  """The ClusterPeers of a chief with two workers, their ends of the connections, and the losses."""
  lost, near, far = [], {}, {}
  with sockets.open_listener(0) as listener:
    for task in (W1, W2):
      near[task] = Connection(
          sockets.connect('127.0.0.1', listener.getsockname()[1], SECS))
      far[task] = listener.accept()[0]
  peers = ClusterPeers(Settings(model_dir='x', peer_timeout_secs=SECS),
               Cluster({'worker': ('a:1', 'b:1', 'c:1')}, W0), on_task_lost=lost.append)
  peers.start_message_thread(near)
  yield peers, far, lost
  for each in far.values():
    each.close()
  peers.send_goodbye()


@pytest.mark.parametrize('line, reason', [
    (b'[1]\n', 'it uses another protocol'),
    (b'{"state": "training", "stop_at": "7"}\n', 'it uses another protocol'),
    (b'x' * 70000, 'it sent more than 65536 bytes in one message')])
def test_another_protocol(chief, line, reason):
  _, far, lost = chief
  far[W1].sendall(line)
  wait_until(lambda: lost)
  assert lost == [LostTask(W1, reason)]


def test_one_that_does_not_read_blocks_nothing(chief, monkeypatch):
  """It misses heartbeats, so that they do not fill the memory, but not the last message."""
  monkeypatch.setattr(cluster_peers, '_POLL_SECS', .001)
  peers, far, _ = chief
  reader, num_sent = far[W2].makefile('rb'), 300  # More than the buffers of a connection hold.
  for number in range(num_sent):
    peers.announce_state('x' * 100000 + ' {}'.format(number))
    while ' {}"'.format(number) not in reader.readline().decode():
      pass
  finishing = in_thread(peers.send_goodbye)
  lines = far[W1].makefile('rb').readlines()
  finishing.result(SECS)
  assert json.loads(lines[-1].decode()) == {'bye': True, 'measurements': {}}
  assert 0 < len(lines) < num_sent / 2


@pytest.mark.parametrize('error, expected', [
    # All workers raise this error, and each worker reports its own.
    (errors.NonFiniteLoss('the loss is nan'), mock.call.send_goodbye()),
    # Only the chief raises this error: it alone saves.
    (errors.CheckpointNotSaved('no disk'), mock.call.report_failure('no disk', 3)),
    (errors.UserError('a', 'b', 'c'), mock.call.report_failure('a: b: c', 2)),
    (KeyboardInterrupt(), mock.call.report_failure('KeyboardInterrupt', None))])
def test_an_engine_reports_errors_of_this_task_only(error, expected):
  engine = HorovodEngine.__new__(HorovodEngine)
  engine.peers, engine._run_estimator = mock.Mock(), mock.Mock(side_effect=error)
  with pytest.raises(type(error)):
    engine.train(None, None, (), 1)
  assert engine.peers.method_calls == [expected]


def test_tasks_of_other_versions_are_refused(monkeypatch):
  connect = mock.Mock(return_value={})
  monkeypatch.setattr(cluster_peers.rendezvous, 'connect', connect)
  cluster = Cluster({'worker': ('a:1',)}, W0)
  star = ClusterPeers(Settings(model_dir='x'), cluster)
  star.join_run({'examples': '7'})
  star.send_goodbye()
  (_, values, *_), _ = connect.call_args
  assert values['estimator_train'] == __version__ and values['TensorFlow'] == tf.version.VERSION
  assert values['examples'] == '7' and '--seed' in values and '--data_dir' not in values
