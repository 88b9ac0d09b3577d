"""The other processes of a run, as the code that trains and evaluates uses them."""

import contextlib
from typing import Any, Dict, Iterator, Mapping, Optional

# States of a task. A task is READY once its model is prepared, and TRAINED after its last step. Any
# state besides these four is an activity, such as `evaluating`, during which the task is busy.
STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'


class Peers:
  """The other processes of a run, of which a run in one process has none.

  In this base class, there is no process to wait for, so all methods return at once. ClusterPeers
  overrides all of them but `announce_activity`. Its methods that wait raise a PeerLost if another
  process is lost.

  Attributes:
    stop_step: the lowest global step at which a process has asked all processes to stop; None if no
      process has asked.
  """
  stop_step: Optional[int] = None

  def join(self, shared_values: Mapping[str, str]) -> None:
    """Connects the processes. The other workers then wait until the chief announces a state.

    Args:
      shared_values: the values besides the flags that must be the same in all processes, by name.

    Raises:
      PeerLost: a process did not connect in time.
      UserError: a flag or shared value of this process differs from the chief's.
    """

  def announce(self, state: str) -> None:
    """Sends the state of this process, READY, TRAINING or TRAINED, to the others."""

  @contextlib.contextmanager
  def announce_activity(self, activity: str) -> Iterator[None]:
    """Announces an activity between steps, so that processes that wait for it do not time out."""
    self.announce(activity)
    yield
    self.announce(TRAINING)

  def is_any_busy(self) -> bool:
    """Whether another process is busy between steps; a step of this process must wait for it."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Asks all processes to stop at a global step, and waits until all of them know the step.

    Args:
      global_step: a step that no process can complete before this method returns.
    """
    self.stop_step = global_step

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Leaves the run after its end.

    Before that, the chief waits for all other workers, and a parameter server waits for the chief.

    Args:
      measurements: the measurements of this process, for the report that the chief writes.

    Returns:
      On the chief, the measurements of the other workers, by the name of the worker.
    """
    return {}
