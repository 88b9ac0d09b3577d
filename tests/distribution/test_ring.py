"""Workers sum arrays around a ring of connections."""

import copy
import functools
import socket
import threading

import numpy as np
import pytest

from estimator_train.distribution import ring as ring_module
from estimator_train.distribution.ring import Ring, RingBroken

SECS = 60


@pytest.fixture
def make_rings():
  sockets = []

  def make(size):
    # Pair i connects worker i to worker i + 1; two workers share one connection.
    pairs = [socket.socketpair() for _ in range(1 if size == 2 else size)]
    for each in sum(pairs, ()):
      each.setblocking(False)
      sockets.append(each)
    if size == 2:
      return [Ring(rank, 2, each, each) for rank, each in enumerate(pairs[0])]
    return [Ring(rank, size, pairs[rank - 1][1], pairs[rank][0]) for rank in range(size)]

  yield make
  for each in sockets:
    each.close()


def run_all(calls):
  """Runs functions in a thread each; returns the results, or the exceptions."""
  results = [None] * len(calls)

  def run(index):
    try:
      results[index] = calls[index]()
    except Exception as error:
      results[index] = error

  threads = [threading.Thread(target=run, args=(index,), daemon=True)
             for index in range(len(calls))]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(SECS)
    assert not thread.is_alive()
  return results


@pytest.mark.parametrize('size', [2, 3, 4, 7])
@pytest.mark.parametrize('small_bytes', [0, ring_module._SMALL_BYTES])
def test_sums(make_rings, monkeypatch, size, small_bytes):
  monkeypatch.setattr(ring_module, '_SMALL_BYTES', small_bytes)
  random = np.random.RandomState(size)
  arrays = [[np.asarray(random.uniform(-9, 9, shape)).astype(dtype) for shape, dtype in (
      ((), 'float32'), ((3,), 'int64'), ((700, 1001), 'float32'), ((0, 2), 'float32'),
      ((5, 2), 'float16'), ((300001,), 'float64'), ((2, 2), 'float32'))] for _ in range(size)]
  arrays[0][2] = np.asfortranarray(arrays[0][2])
  rings = make_rings(size)
  for operation in range(3):  # The connections are used again.
    results = run_all([functools.partial(ring.all_reduce, operation, own)
                       for ring, own in zip(rings, arrays)])
    for of_all_workers, sums in zip(zip(*arrays), zip(*results)):
      expected = sum(array.astype('float64') for array in of_all_workers)
      for array in sums:
        assert array.shape == expected.shape and array.dtype == of_all_workers[0].dtype
        tolerance = 2e-2 if array.itemsize == 2 else 1e-5
        np.testing.assert_allclose(array, expected, tolerance, tolerance)
        np.testing.assert_array_equal(array, sums[0])  # Exactly the same on all workers.


def test_large_arrays_are_aligned(make_rings):
  """TensorFlow copies other arrays."""
  size = 2 * ring_module._SMALL_BYTES
  results = run_all([functools.partial(ring.all_reduce, 0, [np.ones(size, np.uint8)])
                     for ring in make_rings(2)])
  assert [array.ctypes.data % 64 for array, in results] == [0, 0]


@pytest.mark.parametrize('others', [
    pytest.param((1, 100), id='another operation'), pytest.param((0, 104), id='other sizes')])
def test_workers_must_execute_the_same_operations(make_rings, others):
  calls = [(0, 100), others]
  rings = make_rings(2)
  errors = run_all([functools.partial(ring.all_reduce, operation, [np.ones(size)])
                    for ring, (operation, size) in zip(rings, calls)])
  assert all(isinstance(error, RingBroken) for error in errors)
  assert 'number 0 with 400 bytes' in str(errors[1]), errors
  assert [ring.error for ring in rings] == errors
  with pytest.raises(RingBroken, match='number 0'):
    rings[1].all_reduce(2, [np.ones(1)])


@pytest.fixture
def neighbor():
  """A ring of two workers, and the socket of the other worker."""
  near, far = socket.socketpair()
  near.setblocking(False)
  far.settimeout(SECS)
  with near, far:
    yield Ring(0, 2, near, near), far


def header(operation, num_bytes):
  return ring_module._HEADER.pack(operation, num_bytes)


@pytest.mark.parametrize('num_values', [0, 3])
def test_a_neighbor_that_ends(neighbor, num_values):
  ring, far = neighbor
  far.sendall(header(0, 80) + np.ones(num_values, np.float32).tobytes())
  far.shutdown(socket.SHUT_WR)
  with pytest.raises(RingBroken, match='the connection to a neighbor ended'):
    ring.all_reduce(0, [np.ones(40, np.float32)])


def test_a_value_that_arrives_in_two_pieces(neighbor):
  ring, far = neighbor
  values = np.arange(40, dtype=np.float32)
  part = values[20:].tobytes()
  far.sendall(header(0, 80) + part[:6])

  def send_the_rest():
    assert far.recv(1)  # By now, the ring has probably received the first piece.
    far.sendall(part[6:] + header(0, 80) + (2 * values[:20]).tobytes())

  (sums,), _ = run_all([lambda: ring.all_reduce(0, [values]), send_the_rest])
  np.testing.assert_array_equal(sums, 2 * values)


def test_a_copy_uses_the_same_connections(make_rings):
  ring = make_rings(2)[0]
  assert copy.deepcopy(ring) is ring
