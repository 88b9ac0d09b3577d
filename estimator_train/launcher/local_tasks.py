"""The tasks of a cluster on this machine: started, watched, stopped and started again together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.process import child_process

_SIGNAL, _PEER_LOST = 128, 138  # Codes from the former on are worth another start.
_POLL_SECS = 0.1


class Limits(NamedTuple):
  """How long tasks are waited for, in seconds.

  Attributes:
    notice: until those who lost a peer have ended by themselves; then they are killed.
    end: until all have ended where one has done all, or failed for good; then they are told to.
    save: until those that were told to end have saved a checkpoint; then they are killed.
  """
  notice: float = 60.
  end: float = 5.
  save: float = 10.


LIMITS = Limits()


class Task(NamedTuple):
  """One process of the cluster.

  Attributes:
    type: chief, worker or ps.
    index: its place among those of its type.
  """
  type: str
  index: int  # type: ignore[assignment]  # It hides tuple's method, which nobody needs here.

  def __str__(self) -> str:
    return self.type if self.type == 'chief' else '{} {}'.format(self.type, self.index)


class Place(NamedTuple):
  """What of the machine is a task's own.

  Attributes:
    cores: the numbers of its cores; none: those of this process.
    gpus: what its CUDA_VISIBLE_DEVICES says; None: that of this process.
  """
  cores: Tuple[int, ...] = ()
  gpus: Optional[str] = None


class Failure(NamedTuple):
  """A task that ended with an error by itself.

  Attributes:
    code: its exit code, as a shell has it: 128 + n when signal n killed it.
    reason: that in words, with the task's name.
  """
  code: int
  reason: str


class _Running(NamedTuple):
  """A started task; `log` and the `offset` of what it writes there are of all but the leader."""
  task: Task
  process: 'subprocess.Popen[bytes]'
  log: Optional[str]
  offset: int


class LocalCluster:
  """The tasks, from start to start.

  Args:
    tasks: the leader first.
    command: what each of them runs.
    logs: the folder of their logs.
    received: signals that this process gets; it grows.
    limits: how long tasks are waited for.
    clock: returns the time in seconds.
    sleep: lets seconds pass.
    places: of the tasks, in their order; none: all have the whole machine.
  """

  def __init__(self, tasks: Sequence[Task], command: Sequence[str], logs: str,
               received: List[int], limits: Limits = LIMITS,
               clock: Callable[[], float] = time.monotonic,
               sleep: Callable[[float], None] = time.sleep,
               places: Sequence[Place] = ()) -> None:
    self._tasks, self._command, self._logs, self._limits = tasks, command, logs, limits
    self._received, self._clock, self._sleep = received, clock, sleep
    self._places = places or [Place()] * len(tasks)
    self._running: List[_Running] = []
    self._num_passed_on = 0

  def run(self, max_restarts: int) -> int:
    """Starts the tasks until they end well, or for good.

    Args:
      max_restarts: how often they are started again after a failure that is worth it.

    Returns:
      The exit code.
    """
    say('{}: what {} says follows, of the others see {}'.format(
        _counted(self._tasks), self._tasks[0], self._logs))
    for number in range(max_restarts + 1):
      failures = self._run_once()
      stops = [signum for signum in self._received if signum != signal.SIGUSR1]
      if stops:
        return _SIGNAL + stops[0]
      if not failures:
        return 0
      # Who only lost a peer is not the reason, even if it noticed that before we did.
      failure = min(failures, key=lambda failure: (failure.code >= _SIGNAL,
                                                   failure.code == _PEER_LOST))
      if failure.code < _SIGNAL or number == max_restarts:
        return failure.code
      say('starting all tasks again ({} of {}): {}'.format(
          number + 1, max_restarts, failure.reason))
    raise AssertionError('not reached')

  def _run_once(self) -> List[Failure]:
    """Runs all tasks to their end, and returns the failures in their order."""
    with _free_ports(len(self._tasks)) as ports:
      try:
        for environment, task, place in zip(
            _environments(self._tasks, ports), self._tasks, self._places):
          self._running.append(self._start(task, environment, place))
        return self._wait()
      finally:
        self._send(signal.SIGKILL)
        for running in self._running:
          running.process.wait()
        self._running = []

  def _start(self, task: Task, environment: Dict[str, str], place: Place) -> _Running:
    log, offset, out = None, 0, None
    if place.gpus is not None:
      environment['CUDA_VISIBLE_DEVICES'] = place.gpus
    with contextlib.ExitStack() as files:
      if task != self._tasks[0]:
        log = os.path.join(self._logs, str(task).replace(' ', '-') + '.log')
        out = files.enter_context(open(log, 'ab'))
        offset = out.tell()
      process = subprocess.Popen(
          self._command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
          # A terminal's Ctrl-C would reach it twice, and a second one means to end at once.
          start_new_session=True,
          preexec_fn=child_process.make_settle_in(place.cores))  # noqa: PLW1509 (it takes no lock)
    return _Running(task, process, log, offset)

  def _wait(self) -> List[Failure]:
    failures: List[Failure] = []
    terminate_at = kill_at = float('inf')
    is_counted = True
    while True:
      for running in self._ended():
        code = running.process.returncode
        if code and is_counted:
          failures.append(_failure(running))
          if failures[-1].code >= _SIGNAL:
            kill_at = min(kill_at, self._clock() + self._limits.notice)
        # Nobody else has anything to do, or a chance.
        if (code == 0 and running.task == self._tasks[0]) or 0 < code < _SIGNAL:
          is_counted = is_counted and code != 0
          terminate_at = min(terminate_at, self._clock() + self._limits.end)
      if not self._running:
        return failures
      for signum in self._received[self._num_passed_on:]:
        self._send(signum)
        self._num_passed_on += 1
        if signum != signal.SIGUSR1:  # With that they save a checkpoint, and go on.
          is_counted = False
          kill_at = min(kill_at, self._clock() + self._limits.save)
      if self._clock() >= terminate_at:
        self._send(signal.SIGTERM)
        is_counted, terminate_at = False, float('inf')
        kill_at = min(kill_at, self._clock() + self._limits.save)
      if self._clock() >= kill_at:
        say('killed, as they did not end by themselves: {}'.format(
            ', '.join(str(running.task) for running in self._running)))
        self._send(signal.SIGKILL)
        is_counted, kill_at = False, float('inf')
      self._sleep(_POLL_SECS)

  def _ended(self) -> List[_Running]:
    """Returns those that ended since it was asked last, and forgets them."""
    ended = [running for running in self._running if running.process.poll() is not None]
    self._running = [running for running in self._running if running not in ended]
    return ended

  def _send(self, signum: int) -> None:
    for running in self._running:
      running.process.send_signal(signum)


def _failure(running: _Running) -> Failure:
  """Returns how a task failed, and says so unless it has in front of all."""
  code = running.process.returncode
  error = 'see above'  # The leader's own last words.
  if code < 0 or running.log:
    error = child_process.error_of(code, running.log or os.devnull, running.offset)
  has_said_so = running.log is None and code > 0
  code = _SIGNAL - code if code < 0 else code
  failure = Failure(code, '{} ended with code {}: {}'.format(running.task, code, error))
  if not has_said_so:
    say(failure.reason + ('' if running.log is None else ': see ' + running.log))
  return failure


def _environments(tasks: Sequence[Task], ports: Sequence[int]) -> Iterator[Dict[str, str]]:
  """Yields the variables of each task."""
  cluster: Dict[str, List[str]] = {}
  for task, port in zip(tasks, ports):
    cluster.setdefault(task.type, []).append('127.0.0.1:{}'.format(port))
  for task in tasks:
    config = {'cluster': cluster, 'task': {'type': task.type, 'index': task.index}}
    yield dict(child_process.environment(), TF_CONFIG=json.dumps(config))


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[List[int]]:
  """Finds ports for others to listen to, and keeps connections of this machine from taking them.

  As long as both have SO_REUSEADDR and only one listens, Linux gives a port twice.
  """
  with contextlib.ExitStack() as sockets:
    ports = []
    for _ in range(count):
      held = sockets.enter_context(socket.socket())
      held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      held.bind(('', 0))
      ports.append(held.getsockname()[1])
    yield ports


def _counted(tasks: Sequence[Task]) -> str:
  """Returns how many tasks there are of each type, such as `1 chief, 2 worker`."""
  kinds = [task.type for task in tasks]
  return ', '.join('{} {}'.format(kinds.count(kind), kind)
                   for kind in sorted(set(kinds), key=kinds.index))


def say(text: str) -> None:
  """Prints a line to standard error."""
  print(text, file=sys.stderr, flush=True)
