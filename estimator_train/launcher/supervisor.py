"""Runs all tasks of a cluster on this machine, and restarts them together after a failure.

The first task is the leader, which inherits the outputs of this process.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.distribution.rendezvous import KEY_VARIABLE
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import SIGNAL_CODE_BASE, PeerLost
from estimator_train.system import child_process

_POLL_SECS = 0.1


class Timeouts(NamedTuple):
  """The times for which the supervisor waits for tasks to end.

  Attributes:
    peer_loss_secs: from a failure with an exit code of 128 or above to the kill of other tasks.
    finish_secs: from the end of the leader, or a failure with an exit code below 128, to SIGTERM.
    save_secs: from SIGINT or SIGTERM, after which tasks save a checkpoint, to their kill.
  """
  peer_loss_secs: float = 60.
  finish_secs: float = 5.
  save_secs: float = 10.


class TaskResources(NamedTuple):
  """The cores and GPUs of a task.

  Attributes:
    cores: the IDs; empty for the cores of this process.
    gpus: the value of CUDA_VISIBLE_DEVICES; None for the value of this process.
  """
  cores: Tuple[int, ...] = ()
  gpus: Optional[str] = None


class TaskFailure(NamedTuple):
  """The failure of a task that the supervisor did not end.

  Attributes:
    exit_code: 128 + n if signal n killed the task, as in a shell.
  """
  exit_code: int
  reason: str


class _RunningTask(NamedTuple):
  """A task that has been started.

  Attributes:
    log_path: None for the leader, which has no log file.
    log_offset: the position in bytes at which the output of the process begins in the log file.
  """
  task: Task
  process: 'subprocess.Popen[bytes]'
  log_path: Optional[str]
  log_offset: int


class Supervisor:
  """Runs the tasks of a cluster on this machine.

  Args:
    tasks: the leader first.
    log_dir: the folder for the log files of all tasks except the leader.
    received_signals: signal handlers append to this list while the cluster runs.
  """

  def __init__(self, tasks: Sequence[Task], command: Sequence[str], log_dir: str,
               received_signals: List[int], timeouts: Timeouts,
               resources: Sequence[TaskResources]) -> None:
    self._tasks, self._command, self._log_dir, self._timeouts = tasks, command, log_dir, timeouts
    self._received_signals, self._resources = received_signals, resources
    self._running_tasks: List[_RunningTask] = []
    self._num_forwarded_signals = 0
    self._key = secrets.token_hex()  # Keeps other users of this machine out of the cluster.

  def run(self, max_restarts: int) -> int:
    """Runs the tasks, and restarts them after temporary failures. Returns the exit code."""
    task_summary = _make_cluster(self._tasks, [0] * len(self._tasks)).task_summary
    print_to_stderr('starting tasks ({}): the output of {} follows, the others log to {}'.format(
        task_summary, self._tasks[0], self._log_dir))
    for num_restarts in range(max_restarts + 1):
      failures = self._run_until_end()
      stop_signals = [signum for signum in self._received_signals if signum != signal.SIGUSR1]
      if stop_signals:
        return SIGNAL_CODE_BASE + stop_signals[0]
      if not failures:
        return 0
      # If there is a failure that no restart can fix, it is chosen. The loss of a peer is chosen
      # last, because the failure of that peer is its cause.
      failure = min(failures, key=lambda failure: (failure.exit_code >= SIGNAL_CODE_BASE,
                                                   failure.exit_code == PeerLost.exit_code))
      if failure.exit_code < SIGNAL_CODE_BASE or num_restarts == max_restarts:
        return failure.exit_code
      print_to_stderr('restarting all tasks (restart {} of {}): {}'.format(
          num_restarts + 1, max_restarts, failure.reason))
    raise AssertionError('not reached')

  def _run_until_end(self) -> List[TaskFailure]:
    """Runs all tasks until they have ended, and returns the failures in the order of detection."""
    with _reserve_ports(len(self._tasks)) as ports:
      try:
        cluster = _make_cluster(self._tasks, ports)
        for task, resources in zip(self._tasks, self._resources):
          self._running_tasks.append(self._start_task(cluster._replace(task=task), resources))
        return self._wait_for_tasks()
      finally:
        self._send_signal_to_tasks(signal.SIGKILL)
        for running_task in self._running_tasks:
          running_task.process.wait()
        self._running_tasks = []

  def _start_task(self, cluster: Cluster, resources: TaskResources) -> _RunningTask:
    task, log_path, log_offset, log_file = cluster.task, None, 0, None
    environment = dict(child_process.child_environment(), TF_CONFIG=cluster.to_tf_config())
    environment.setdefault(KEY_VARIABLE, self._key)
    if resources.gpus is not None:
      environment['CUDA_VISIBLE_DEVICES'] = resources.gpus
    with contextlib.ExitStack() as open_files:
      if task != self._tasks[0]:
        log_path = os.path.join(self._log_dir, str(task).replace(' ', '-') + '.log')
        log_file = open_files.enter_context(open(log_path, 'ab'))
        log_offset = os.fstat(log_file.fileno()).st_size
      # start_process gives each task a new session. Otherwise, on Ctrl-C, a task would receive
      # SIGINT from the terminal and from this process, and the second SIGINT would abort the task.
      process = child_process.start_process(
          self._command, environment, log_file, log_file, resources.cores)
    return _RunningTask(task, process, log_path, log_offset)

  def _wait_for_tasks(self) -> List[TaskFailure]:
    """Waits until all tasks have ended, forwards signals, and ends tasks that exceed a timeout.

    Returns:
      The failures that occurred before the supervisor began to end tasks.
    """
    failures: List[TaskFailure] = []
    terminate_at = kill_at = float('inf')  # Times by time.monotonic.
    is_ending_tasks = False
    while True:
      ended_tasks = [task for task in self._running_tasks if task.process.poll() is not None]
      self._running_tasks = [task for task in self._running_tasks if task not in ended_tasks]
      for running_task in ended_tasks:
        code = running_task.process.returncode
        if code and not is_ending_tasks:
          failures.append(_report_failure(running_task))
          if failures[-1].exit_code >= SIGNAL_CODE_BASE:
            kill_at = min(kill_at, time.monotonic() + self._timeouts.peer_loss_secs)
        # If the leader has finished, or a restart cannot help, the other tasks must end.
        if (code == 0 and running_task.task == self._tasks[0]) or 0 < code < SIGNAL_CODE_BASE:
          is_ending_tasks = is_ending_tasks or code == 0
          terminate_at = min(terminate_at, time.monotonic() + self._timeouts.finish_secs)
      if not self._running_tasks:
        return failures
      for signum in self._received_signals[self._num_forwarded_signals:]:
        self._send_signal_to_tasks(signum)
        self._num_forwarded_signals += 1
        if signum != signal.SIGUSR1:  # After SIGUSR1 the tasks save a checkpoint, and continue.
          is_ending_tasks = True
          kill_at = min(kill_at, time.monotonic() + self._timeouts.save_secs)
      if time.monotonic() >= terminate_at:
        self._send_signal_to_tasks(signal.SIGTERM)
        is_ending_tasks, terminate_at = True, float('inf')
        kill_at = min(kill_at, time.monotonic() + self._timeouts.save_secs)
      if time.monotonic() >= kill_at:
        print_to_stderr('killed tasks that did not end in time: {}'.format(
            ', '.join(str(running_task.task) for running_task in self._running_tasks)))
        self._send_signal_to_tasks(signal.SIGKILL)
        is_ending_tasks, kill_at = True, float('inf')
      time.sleep(_POLL_SECS)

  def _send_signal_to_tasks(self, signum: int) -> None:
    for running_task in self._running_tasks:
      running_task.process.send_signal(signum)


def _report_failure(running_task: _RunningTask) -> TaskFailure:
  """Returns the failure of a task, and prints it unless the leader itself has printed an error."""
  code = running_task.process.returncode
  has_printed_error = running_task.log_path is None and code > 0
  error_text = 'see above' if has_printed_error else child_process.failure_reason_in_log(
      code, running_task.log_path or os.devnull, running_task.log_offset)
  code = SIGNAL_CODE_BASE - code if code < 0 else code
  failure = TaskFailure(
      code, '{} ended with code {}: {}'.format(running_task.task, code, error_text))
  if not has_printed_error:
    print_to_stderr(failure.reason + (
        '' if running_task.log_path is None else ': see ' + running_task.log_path))
  return failure


def _make_cluster(tasks: Sequence[Task], ports: Sequence[int]) -> Cluster:
  """Returns the cluster, with the first task as the task of this process."""
  addresses: Dict[str, Tuple[str, ...]] = {}
  for task, port in zip(tasks, ports):
    addresses[task.type] = (*addresses.get(task.type, ()), '127.0.0.1:{}'.format(port))
  return Cluster(addresses, tasks[0])


@contextlib.contextmanager
def _reserve_ports(count: int) -> Iterator[List[int]]:
  """Reserves free ports for the tasks, so that Linux assigns none of them to another connection."""
  # A task can nevertheless listen on its port. With SO_REUSEADDR, two sockets can have the same
  # port if only one of them listens.
  with contextlib.ExitStack() as sockets:
    ports = []
    for _ in range(count):
      reserved_socket = sockets.enter_context(socket.socket())
      reserved_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      reserved_socket.bind(('', 0))
      ports.append(reserved_socket.getsockname()[1])
    yield ports


def print_to_stderr(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
