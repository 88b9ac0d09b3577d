"""The other processes of a run, as the code that trains and evaluates sees them."""

import contextlib
from typing import Any, Dict, Iterator, Mapping, Optional

# The states of a task. A task is READY once its model is prepared, and TRAINED after its last step.
# Any other state is an activity, such as `evaluating`, during which the task is busy.
STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'


class Peers:
  """The other processes of a run.

  This base class is for a run in one process. Its methods have nothing to wait for. The methods of
  ClusterPeers raise a PeerLost if another process is lost while they wait.

  Attributes:
    stop_step: the lowest global step at which a process has asked all processes to stop, or None.
  """
  stop_step: Optional[int] = None

  def join_run(self, shared_values: Mapping[str, str]) -> None:
    """Connects the processes. All except the chief then wait until the chief is READY.

    Args:
      shared_values: values besides the flags that must be the same in all processes, by name.

    Raises:
      PeerLost: a process did not connect in time.
      UserError: a flag or shared value of this process differs from the chief's.
    """

  def announce_state(self, state: str) -> None:
    """Sends the state of this process to the other processes."""

  @contextlib.contextmanager
  def announce_activity(self, activity: str) -> Iterator[None]:
    """Announces that this process is busy in the `with` block, so that no wait for it times out."""
    self.announce_state(activity)
    yield
    self.announce_state(TRAINING)

  def is_another_task_busy(self) -> bool:
    """Whether another process is busy, so that a step of this process may have to wait for it."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Asks all processes to stop at a global step, and waits until all of them know the step.

    Args:
      global_step: a step that no process can complete before this method returns.
    """
    self.stop_step = global_step

  def leave_run(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Disconnects this process at the end of the run.

    Before that, the chief waits for all other workers, and a parameter server waits for the chief.

    Args:
      measurements: what the report of the chief contains about this process.

    Returns:
      On the chief, the measurements of the other workers, by the name of the worker.
    """
    return {}
