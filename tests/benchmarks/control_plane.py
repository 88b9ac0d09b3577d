"""How long the tasks of a cluster take to connect, to exchange messages, and to report.

  python tests/benchmarks/control_plane.py [--tasks=2,4,8,16,32,64,128,256]

Starts the tasks as processes of this machine, without TensorFlow, and prints for each number of
tasks:

- `connect_secs`: from the start of the rendezvous until the last task is released.
- `messages`, `kilobytes`: what all tasks send during that time; `per task` of it.
- `chief_mb`: increase of the chief's memory up to the end of the rendezvous.
- `chief_cpu`, `task_cpu`: fraction of a core that the heartbeats of the chief, and on average those
  of the other tasks, need in training.
- `stop_secs`: from the request of one task that all stop until all tasks know the step.
- `report_secs`: from the end of training until the chief has the measurements of all tasks.
- `lost_secs`: from the end of one process until all other tasks know which task was lost.

With more tasks than cores, the processes wait for each other, so these times are upper bounds.
"""

import json
import multiprocessing
import os
import resource
import socket
import sys
import time
from typing import Any, Dict, List

import common

sys.path.insert(0, str(common.ROOT))
from estimator_train.distribution import rendezvous, tf_config  # noqa: E402
from estimator_train.distribution.cluster_peers import ClusterPeers  # noqa: E402
from estimator_train.distribution.messages import Connection  # noqa: E402
from estimator_train.distribution.sockets import StartTimeout  # noqa: E402
from estimator_train.settings import Settings  # noqa: E402

HEARTBEAT_SECS = 5
MEASUREMENTS = {'step_secs_{}'.format(number): .1 for number in range(40)}
FLAGS = {'--flag_{}'.format(number): 'value' for number in range(90)}
COLUMNS = ('tasks', 'connect_secs', 'messages', 'per task', 'kilobytes', 'chief_mb', 'chief_cpu',
           'task_cpu', 'stop_secs', 'report_secs', 'lost_secs')


class _Counter:
  """Counts the messages and bytes that this process sends."""

  def __init__(self) -> None:
    self.messages = self.bytes = 0

  def install(self) -> None:
    send = Connection.send

    def count_and_send(connection: Connection, **message: Any) -> None:
      self.messages += 1
      self.bytes += len(json.dumps(message)) + 1
      send(connection, **message)

    Connection.send = count_and_send  # type: ignore[assignment]


def _memory_mb() -> float:
  with open('/proc/self/statm', encoding='ascii') as file:
    return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def _run_task(cluster: tf_config.Cluster, pipe: Any, is_lost: bool) -> None:
  """Runs one task; the parent process sends the times at which the phases begin."""
  counter = _Counter()
  counter.install()
  memory_mb = _memory_mb()
  _wait_until(pipe.recv())
  lost: List[float] = []
  peers = ClusterPeers(Settings(model_dir='x', peer_timeout_secs=300), cluster,
               on_task_lost=lambda _: lost.append(time.monotonic()))
  peers.start_message_thread(rendezvous.connect(cluster, FLAGS, StartTimeout(300)))
  peers.announce_state('training')
  pipe.send({'at': time.monotonic(), 'messages': counter.messages, 'bytes': counter.bytes,
             'memory_mb': _memory_mb() - memory_mb})

  _wait_until(pipe.recv())
  cpu_secs = time.process_time()
  time.sleep(HEARTBEAT_SECS)
  pipe.send(time.process_time() - cpu_secs)

  _wait_until(pipe.recv())
  if is_lost:
    if cluster.rank == len(cluster.workers) // 2:
      os._exit(1)
    while not lost:
      time.sleep(.001)
    pipe.send(lost[0])
    os._exit(0)
  if cluster.rank == len(cluster.workers) - 1:
    peers.stop_all_at(77)
  while peers.stop_step != 77:
    time.sleep(.001)
  pipe.send(time.monotonic())
  _wait_until(pipe.recv())
  if cluster.is_chief:
    found = peers.wait_for_goodbyes()
    assert len(found) == len(cluster.workers) - 1 and all(found.values())
    pipe.send(time.monotonic())
    peers.send_goodbye()
  else:
    peers.send_goodbye(MEASUREMENTS)
    pipe.send(0.)


def _wait_until(monotonic_secs: float) -> None:
  time.sleep(max(monotonic_secs - time.monotonic(), 0.))


def _run_phase(pipes: List[Any]) -> Any:
  """Starts a phase on all tasks at the same time; returns the start time and the replies."""
  start_at = time.monotonic() + .3
  for pipe in pipes:
    pipe.send(start_at)
  replies = []
  for pipe in pipes:
    try:
      replies.append(pipe.recv())
    except EOFError:  # The lost task.
      pass
  return start_at, replies


def measure(num_tasks: int, is_lost: bool) -> Dict[str, float]:
  """Runs a cluster, and returns its figures.

  Args:
    num_tasks: number of tasks.
    is_lost: whether a task is lost at the end. Otherwise, all tasks stop and report.
  """
  listeners = [socket.socket() for _ in range(num_tasks)]
  for listener in listeners:
    listener.bind(('127.0.0.1', 0))
  addresses = {'worker': tuple('127.0.0.1:{}'.format(listener.getsockname()[1])
                               for listener in listeners)}
  for listener in listeners:
    listener.close()
  context = multiprocessing.get_context('fork')
  pipes, processes = [], []
  for index in range(num_tasks):
    ours, theirs = context.Pipe()
    cluster = tf_config.Cluster(addresses, tf_config.Task('worker', index))
    process = context.Process(target=_run_task, args=(cluster, theirs, is_lost))
    process.start()
    theirs.close()
    pipes.append(ours)
    processes.append(process)

  start_at, replies = _run_phase(pipes)
  row = {'tasks': num_tasks, 'connect_secs': max(reply['at'] for reply in replies) - start_at,
         'messages': sum(reply['messages'] for reply in replies),
         'kilobytes': sum(reply['bytes'] for reply in replies) / 1e3,
         'chief_mb': replies[0]['memory_mb']}
  row['per task'] = row['messages'] / num_tasks
  _, (chief_cpu, *task_cpu) = _run_phase(pipes)
  row['chief_cpu'] = chief_cpu / HEARTBEAT_SECS
  row['task_cpu'] = sum(task_cpu) / len(task_cpu) / HEARTBEAT_SECS
  start_at, replies = _run_phase(pipes)
  row['lost_secs' if is_lost else 'stop_secs'] = max(replies) - start_at
  if not is_lost:
    start_at, replies = _run_phase(pipes)
    row['report_secs'] = replies[0] - start_at
  for process in processes:
    process.join()
  return row


def main() -> None:
  """Measures each number of tasks, and prints a table."""
  given = [argument[len('--tasks='):] for argument in sys.argv[1:]]
  counts = [int(text) for text in (given or ['2,4,8,16,32,64,128,256'])[0].split(',')]
  print('| ' + ' | '.join(COLUMNS) + ' |\n|' + '---|' * len(COLUMNS), flush=True)
  for count in counts:
    row = measure(count, is_lost=False)
    row['lost_secs'] = measure(count, is_lost=True)['lost_secs']
    print('| ' + ' | '.join('{:.3g}'.format(row[name]) if row[name] < 1000 else
                            '{:,.0f}'.format(row[name]) for name in COLUMNS) + ' |', flush=True)


if __name__ == '__main__':
  main()
