"""What a task knows about the others: who is lost or busy, where all stop, who has finished."""

import collections
import json

import pytest
from hypothesis import example, given, strategies as st

from estimator_train.distribution.cluster_state import ClusterState, LostTask, OutgoingMessage
from estimator_train.distribution.tf_config import Cluster, Task

W0, W1, W2, PS = (*(Task('worker', index) for index in range(3)), Task('ps', 0))
TASKS = W0, W1, W2, PS
TIMEOUT, ENDED = 30, 'its connection ended'
REPORTED = ('this task was reported as lost by worker 0 (no message); the longest time in which '
            'this task read no messages was 0.1 s')


def state_of(task):
  return ClusterState(Cluster({'worker': ('a:1', 'b:1', 'c:1'), 'ps': ('d:1',)}, task), TIMEOUT)


def play(state, steps):
  """Applies steps to a state: (task, its message, or None if its connection ends), or a time.

  Returns the messages to send at the last time.
  """
  messages = state.tick(0.)
  for step in steps:
    if not isinstance(step, tuple):
      messages = state.tick(step)
    elif step[1] is None:
      state.handle_disconnection(step[0], ENDED)
    else:
      state.handle_message(step[0], json.loads(json.dumps(step[1])))
  return messages


@pytest.mark.parametrize('task, steps, expected', [
    (W1, [(W0, None), .1], (W0, ENDED)),
    (W1, [(W0, {'failed': 'the disk is full'}), (W0, None), .1], (W0, 'the disk is full')),
    # Later losses are consequences.
    (W0, [(PS, None), (W2, {'failed': 'x'}), (W1, None), .1], (PS, ENDED)),
    (W1, [(W0, {'lost': PS, 'reason': ENDED, 'code': 143}), (W0, None), .1], (PS, ENDED)),
    # What a restart cannot help ends all tasks in the same way.
    (W1, [(W0, {'lost': PS, 'reason': 'a wrong flag', 'code': 2}), .1], (PS, 'a wrong flag', 2)),
    (W0, [(W2, {'failed': 'no disk', 'code': 3}), (W1, None), .1], (W2, 'no disk', 3)),
    (W0, [(W2, {'failed': 'killed', 'code': [2]}), .1], (W2, 'killed')),
    (W0, [(W1, {'failed': 'x' * 9999}), .1], (W1, 'x' * 200)),
    (W1, [.1, (W0, {'lost': W1, 'reason': 'no message'}), .2], (W1, REPORTED)),
    (W0, [20, (W1, {'state': 'x'}), (PS, {}), 31], (W2, 'no message from it for 31 s')),
    (W1, [30], None),  # Neither the chief nor this task was silent for longer.
    (W1, [20, 31], (W0, 'no message from it for 31 s')),
    # Silence of the others while this task was suspended is not their fault.
    (W0, [40], (W0, 'this task was suspended for 40 s')),
    (W1, [40], (W1, 'this task was suspended for 40 s')),
    (W0, [20, *((task, {'bye': True}) for task in TASKS[1:]), (W1, None), 40, 60], None),
    (W0, [20, *((task, {'state': 'training'}) for task in TASKS[1:]), 49, 50], None)])
def test_the_first_lost_task(task, steps, expected):
  state = state_of(task)
  messages = play(state, steps)
  if expected is None:
    assert state.lost is None
    return
  assert state.lost == LostTask(*expected)
  assert state.tick(60.) == messages and state.lost == LostTask(*expected)
  task_and_reason = '{}: {}'.format(*expected[:2])
  assert str(state.lost) == (
      'lost {}; the same command resumes from the last checkpoint'.format(task_and_reason)
      if len(expected) == 2 else task_and_reason.replace(': ', ' failed: ', 1))
  # The chief reports it to all, also to the lost task; another member reports only its own loss.
  message = {'lost': list(expected[0]), 'reason': expected[1], 'code': state.lost.exit_code}
  assert messages == (
      [OutgoingMessage(other, message) for other in TASKS[1:]] if task == W0 else
      [OutgoingMessage(W0, {'failed': expected[1]})] if task == expected[0] else [])


class Simulation:
  """The tasks of a cluster, between which messages are delayed; `None` ends a connection."""

  def __init__(self):
    self.states = {task: state_of(task) for task in TASKS}
    self.links = {link: collections.deque()
                  for task in TASKS[1:] for link in ((W0, task), (task, W0))}
    self.requested, self.trained, self.killed, self.now = [], set(), None, 0.

  def tick(self, task):
    self.now += .01
    state = self.states[task]
    for receiver, message in state.tick(self.now):
      if (task, receiver) in self.links:
        self.links[task, receiver].append(json.dumps(message))
    if state.lost is not None:
      self.end(task)

  def end(self, task):
    """Ends a process."""
    del self.states[task]
    for link, messages in self.links.items():
      if link[0] == task:
        messages.append(None)

  def deliver(self, link):
    sender, receiver = link
    if self.links[link]:
      message = self.links[link].popleft()
      if receiver in self.states and message is None:
        self.states[receiver].handle_disconnection(sender, ENDED)
      elif receiver in self.states:
        self.states[receiver].handle_message(sender, json.loads(message))

  def act(self, action, task, step):
    if task not in self.states:
      return
    if action == 'tick':
      self.tick(task)
    elif action == 'deliver':
      self.deliver((W0, task) if task != W0 else list(self.links)[step % len(self.links)])
    elif action == 'stop':
      self.states[task].request_stop(step)
      self.requested.append(step)
    elif action == 'train' and task != PS:
      self.states[task].announce_state('trained')
      self.trained.add(task)
    elif action == 'kill' and self.killed is None:
      self.killed = task
      self.end(task)

  def check(self):
    """Checks what a task may rely on at any time."""
    for state in self.states.values():
      for step in self.requested:
        if state.is_stop_confirmed(step) and self.killed is None:
          assert all(each.stop_step is not None and each.stop_step <= step
                     for each in self.states.values())
      assert not state.have_all_trained() or self.trained == {W0, W1, W2}

  def settle(self):
    for _ in range(200):
      for task in list(self.states):
        self.tick(task)
      for link in self.links:
        while self.links[link]:
          self.deliver(link)


@given(st.lists(st.tuples(st.sampled_from(
    ['tick'] * 4 + ['deliver'] * 8 + ['stop', 'train', 'train', 'kill']),
                          st.sampled_from(TASKS), st.integers(1, 9)), max_size=60))
@example([('train', worker, 1) for worker in (W0, W1, W2)])
def test_any_order_of_events(actions):
  """Nobody stops before all know the step; in the end all agree, or all know who was killed."""
  simulation = Simulation()
  states = dict(simulation.states)  # Also of tasks that end because another one was killed.
  for action in actions:
    simulation.act(*action)
    simulation.check()
  states.pop(simulation.killed, None)
  simulation.settle()
  if simulation.killed is not None:
    assert not simulation.states
    assert {state.lost for state in states.values()} == {LostTask(simulation.killed, ENDED)}
    return
  simulation.check()
  lowest = min(simulation.requested, default=None)
  assert {state.stop_step for state in states.values()} == {lowest}
  assert lowest is None or all(state.is_stop_confirmed(lowest) for state in states.values())
  assert all(state.have_all_trained() == (simulation.trained == {W0, W1, W2})
             for state in states.values())
