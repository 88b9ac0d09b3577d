"""Sums arrays over the workers of a cluster, by a ring all-reduce over TCP connections.

Each worker sends to the next worker and receives from the previous one. An array is divided into as
many parts as there are workers. In the first half of the all-reduce, each part travels around the
ring, and each worker adds its own values. In the second half, the complete sums travel around, so
that all workers have exactly the same result. Each worker sends 2 (N - 1) / N of the bytes of the
array, which is the minimum (Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for
Clusters of Workstations, 2009).
"""

import select
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

# The most bytes to receive, and then to add, at once. They fit into the cache of a core.
_SEGMENT_BYTES = 1 << 20
# Smaller arrays are combined, because each all-reduce waits 2 (N - 1) times for the network.
_SMALL_BYTES = 1 << 20
# TensorFlow uses an array without a copy only if it begins at a multiple of this.
_ALIGNMENT_BYTES = 64
# Precedes each part: the number of the operation, and the bytes of the part.
_HEADER = struct.Struct('!IQ')


class RingBroken(Exception):
  """The workers can no longer exchange data; the message states the reason."""


class Ring:
  """The connections of this worker to its neighbors in the ring.

  All workers must execute the same operations in the same order, and each worker one at a time.

  Args:
    rank: the rank of this worker.
    size: the number of workers.
    previous: a connection to the worker with the preceding rank, a non-blocking socket.
    following: a connection to the worker with the following rank. With two workers, both are the
      same connection.

  Attributes:
    error: the error that has broken the ring; None: no error.
  """

  def __init__(self, rank: int, size: int, previous: socket.socket,
               following: socket.socket) -> None:
    self._rank, self._size, self._previous, self._following = rank, size, previous, following
    self.error: Optional[RingBroken] = None

  def __deepcopy__(self, memo: Dict[int, Any]) -> 'Ring':
    return self  # Estimator copies its configuration, which contains the strategy.

  def all_reduce(self, operation: int, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Returns the sum of each array over all workers.

    Args:
      operation: the number of the operation, the same on all workers.
      arrays: arrays of numeric dtypes, whose shapes and dtypes are the same on all workers.

    Raises:
      RingBroken: a neighbor has ended, or executes another operation. Later calls fail, too.
    """
    try:
      if self.error is None:
        return self._all_reduce(operation, arrays)
    except OSError as error:
      self.error = RingBroken('the connection to a neighbor ended ({})'.format(
          error.strerror or error))
    except RingBroken as error:
      self.error = error
    raise self.error

  def _all_reduce(self, operation: int, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
    sums: List[np.ndarray] = [np.empty(0)] * len(arrays)
    for indices in _group(arrays):
      vectors = [np.ravel(arrays[index]) for index in indices]
      total = self._all_reduce_vector(
          operation, vectors[0] if len(vectors) == 1 else np.concatenate(vectors))
      ends = np.cumsum([vector.size for vector in vectors])
      for index, vector in zip(indices, np.split(total, ends[:-1])):
        sums[index] = vector.reshape(arrays[index].shape)
    return sums

  def _all_reduce_vector(self, operation: int, vector: np.ndarray) -> np.ndarray:
    """Returns the sum of a vector over all workers, in a new array."""
    bounds = [vector.size * part // self._size for part in range(self._size + 1)]
    parts = [slice(*bounds[part:part + 2]) for part in range(self._size)]
    total = _empty(vector.size, vector.dtype)
    outgoing = vector[parts[self._rank]]
    for step in range(1, 2 * self._size - 1):
      part = parts[(self._rank - step) % self._size]
      # In the first half, the received part lacks the values of this worker.
      self._exchange(operation, outgoing, total[part],
                     vector[part] if step < self._size else None)
      outgoing = total[part]
    return total

  def _exchange(self, operation: int, outgoing: np.ndarray, incoming: np.ndarray,
                addend: Optional[np.ndarray]) -> None:
    """Sends a part to the next worker, while a part of the previous worker is received.

    Args:
      operation: the number of the operation.
      outgoing: the part to send.
      incoming: where the received part is written.
      addend: the values to add to the received values; None: nothing is added.
    """
    header = bytearray(_HEADER.size)
    to_send = [memoryview(_HEADER.pack(operation, outgoing.nbytes)), _as_bytes(outgoing)]
    to_receive = [memoryview(header), _as_bytes(incoming)]
    num_added = 0
    while to_send or to_receive:
      has_sent, has_received = self._send(to_send), self._receive(to_receive)
      if has_received and len(to_receive) < 2:
        _check_header(header, operation, incoming.nbytes)
        if addend is not None:
          num_left = -(-len(to_receive[0]) // incoming.itemsize) if to_receive else 0
          new = slice(num_added, incoming.size - num_left)
          np.add(incoming[new], addend[new], out=incoming[new])
          num_added = new.stop
      if not has_sent and not has_received:
        self._wait(bool(to_send), bool(to_receive))

  def _send(self, views: List[memoryview]) -> bool:
    """Sends as many bytes as the socket accepts, and removes them; returns whether it sent any."""
    try:
      num_sent = self._following.send(views[0]) if views else 0
    except BlockingIOError:
      return False
    return _remove(views, num_sent)

  def _receive(self, views: List[memoryview]) -> bool:
    """Receives bytes into the views, and removes these; returns whether any bytes arrived."""
    try:
      if not views:
        return False
      num_received = self._previous.recv_into(views[0][:_SEGMENT_BYTES])
    except BlockingIOError:
      return False
    if not num_received:
      raise ConnectionResetError('closed by the neighbor')
    return _remove(views, num_received)

  def _wait(self, to_send: bool, to_receive: bool) -> None:
    """Waits until bytes can be sent or received."""
    poll = select.poll()
    events = {self._previous: select.POLLIN if to_receive else 0}
    events[self._following] = events.get(self._following, 0) | (select.POLLOUT if to_send else 0)
    for connection, mask in events.items():
      if mask:
        poll.register(connection, mask)
    poll.poll()


def _group(arrays: Sequence[np.ndarray]) -> List[List[int]]:
  """Groups the indices of arrays: each large one alone, and the small ones of each dtype."""
  groups: List[List[int]] = []
  small: Dict[Any, List[int]] = {}
  for index, array in enumerate(arrays):
    if array.nbytes >= _SMALL_BYTES:
      groups.append([index])
    else:
      small.setdefault(array.dtype, []).append(index)
  return groups + list(small.values())


def _empty(size: int, dtype: np.dtype) -> np.ndarray:
  """Returns an aligned vector without defined values."""
  buffer = np.empty(size * dtype.itemsize + _ALIGNMENT_BYTES, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT_BYTES
  return buffer[start:start + size * dtype.itemsize].view(dtype)


def _as_bytes(vector: np.ndarray) -> memoryview:
  return memoryview(vector.view(np.uint8))


def _remove(views: List[memoryview], num_bytes: int) -> bool:
  """Removes bytes from the beginning of the views, and then empty views; returns whether any."""
  if views:
    views[0] = views[0][num_bytes:]
  while views and not views[0]:
    del views[0]
  return num_bytes > 0


def _check_header(header: bytearray, operation: int, num_bytes: int) -> None:
  """Raises a RingBroken if the header is not that of a part of this operation."""
  if header != _HEADER.pack(operation, num_bytes):
    raise RingBroken('a neighbor executes another operation: number {} with {} bytes instead of '
                     'number {} with {} bytes'.format(
                         *_HEADER.unpack(header), operation, num_bytes))
