"""The engine for training in one process, and the interface of all engines."""

import contextlib
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.cluster.worker import EVALUATOR, Worker
from estimator_train.distribution.devices import Devices, make_local_strategy, make_session_config
from estimator_train.settings import Settings, groups, per_replica_batch_size


class Engine:
  """Trains an Estimator; this class in one process, on one replica or several.

  Args:
    settings: the settings of the run.
    worker: the role of this process in the run.
    devices: the devices of this process, with one replica on each.

  Attributes:
    settings, worker, devices: the arguments.
    size: number of processes that train together.
    batch_size: examples per replica and step.
    counts_own_steps: whether this process takes part in every global step.
    stop_step: the global step at which all processes are asked to stop; None without a request.

  Raises:
    UserError: the batch size is not divisible by the number of replicas.
  """
  counts_own_steps = True
  stop_step: Optional[int] = None

  def __init__(self, settings: Settings, worker: Worker, devices: Devices) -> None:
    self.settings, self.worker, self.devices = settings, worker, devices
    self.size = 1 if worker.role == EVALUATOR else worker.size
    self.batch_size = per_replica_batch_size(settings.batch_size, self.num_replicas)

  @property
  def num_replicas(self) -> int:
    """Number of replicas in all processes."""
    return self.devices.num_replicas * self.size

  @property
  def examples_per_step(self) -> int:
    """Number of examples per global step."""
    # By the flag, since an evaluator, too, counts the steps of the workers.
    is_asynchronous = self.settings.distribution_strategy == 'parameter_server'
    return self.settings.batch_size // (self.worker.size if is_asynchronous else 1)

  @property
  def examples_per_worker(self) -> int:
    """Number of examples per step of this process."""
    return self.batch_size * self.devices.num_replicas

  def first_example(self, examples_seen: int) -> int:
    """Returns the index, in the order of the examples, at which a resumed run starts to read."""
    return examples_seen

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    """Makes the strategy of training; None for the Estimator's default on one device."""
    return make_local_strategy(self.settings[groups.Devices], self.devices)

  def make_run_config(self) -> tf.estimator.RunConfig:
    """Makes the RunConfig of training and evaluation."""
    return tf.estimator.RunConfig(
        model_dir=self.settings.model_dir,
        tf_random_seed=self.settings.seed,
        train_distribute=self.make_strategy(),
        session_config=make_session_config(self.settings[groups.Devices], self.devices,
                                           in_cluster=self.size > 1),
        save_checkpoints_steps=None,  # The hook SaveCheckpoints saves them.
        save_checkpoints_secs=None,
        keep_checkpoint_max=self.settings.keep_checkpoint_max,
        # Not in a cluster: summaries can contain collective operations, which all processes would
        # have to run. WriteSummaries writes those of this package.
        save_summary_steps=self.settings.log_every_steps if self.size == 1 else 0,
        log_step_count_steps=None)

  def join(self, facts: Mapping[str, str]) -> None:
    """Waits for the other processes, and checks that their flags and facts are the same.

    Args:
      facts: values that must be the same in all processes, by name.

    Raises:
      PeerLost: a process did not connect in time.
      UserError: the flags or facts of this process differ from those of the chief.
    """

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    """Trains up to a global step, or until a hook stops it."""
    estimator.train(input_fn, hooks=hooks, max_steps=max_steps)

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    """Returns the hooks that this engine needs."""
    return ()

  def announce(self, state: str) -> None:
    """Announces the state of this process to the others."""

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    """Announces an activity between steps to the other processes, which wait meanwhile."""
    yield

  def is_waiting_for_peer(self) -> bool:
    """Whether another process is busy between steps, so that no step of this one can end."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Asks all processes to stop at a global step."""
    self.stop_step = global_step

  def finish(self, figures: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Finishes the run of this process; the chief first waits until the others have finished.

    Args:
      figures: measurements of this process, for the report of the chief.

    Returns:
      On the chief, the measurements of each other worker by its name; else an empty dict.
    """
    return {}
