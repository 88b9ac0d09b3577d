"""Workers sum arrays around a ring of connections."""

import socket
from concurrent import futures

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
    sockets.extend(sum(pairs, ()))
    for each in sockets:
      each.setblocking(False)
    if size == 2:
      return [Ring(rank, 2, each, each) for rank, each in enumerate(pairs[0])]
    return [Ring(rank, size, pairs[rank - 1][1], pairs[rank][0]) for rank in range(size)]

  yield make
  for each in sockets:
    each.close()


def all_reduce(rings, *arguments):
  """Calls `all_reduce` of all rings at once; returns the results, or the exceptions."""
  with futures.ThreadPoolExecutor(len(rings)) as pool:
    calls = [pool.submit(ring.all_reduce, *own) for ring, own in zip(rings, zip(*arguments))]
    return [call.exception(SECS) or call.result() for call in calls]


@pytest.mark.parametrize('size', [2, 3, 7])
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
    results = all_reduce(rings, [operation] * size, arrays)
    for of_all_workers, sums in zip(zip(*arrays), zip(*results)):
      expected = sum(array.astype('float64') for array in of_all_workers)
      for array in sums:
        assert array.shape == expected.shape and array.dtype == of_all_workers[0].dtype
        tolerance = 2e-2 if array.itemsize == 2 else 1e-5
        np.testing.assert_allclose(array, expected, tolerance, tolerance)
        np.testing.assert_array_equal(array, sums[0])  # Exactly the same on all workers.
    assert results[0][2].ctypes.data % 64 == 0  # TensorFlow copies other large arrays.


@pytest.mark.parametrize('operations, sizes', [((0, 1), (100, 100)), ((0, 0), (100, 104))])
def test_workers_must_execute_the_same_operations(make_rings, operations, sizes):
  rings = make_rings(2)
  errors = all_reduce(rings, operations, [[np.ones(size)] for size in sizes])
  assert all(isinstance(error, RingBroken) for error in errors)
  assert 'number 0 with 400 bytes' in str(errors[1]), errors
  assert [ring.error for ring in rings] == errors
  with pytest.raises(RingBroken, match='number 0'):
    rings[1].all_reduce(2, [np.ones(1)])


def test_a_neighbor_that_ends():
  near, far = socket.socketpair()
  with near, far:
    near.setblocking(False)
    far.sendall(ring_module._HEADER.pack(0, 80) + b'\0' * 14)  # Ends within a value.
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(RingBroken, match='the connection to a neighbor ended'):
      Ring(0, 2, near, near).all_reduce(0, [np.ones(40, np.float32)])
