"""The engine of one process, and the interface of all engines."""

import contextlib
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.cluster.worker import EVALUATOR, Worker
from estimator_train.distribution.devices import Devices, make_local_strategy, make_session_config
from estimator_train.settings import Settings, groups, per_replica_batch_size
from estimator_train.tf_patches import estimator as estimator_patches


class Engine:
  """Trains an Estimator; here in one process, on one replica or several.

  Args:
    settings: of the run.
    worker: which process of the run this is.
    devices: of this process, one replica each.

  Attributes:
    settings, worker, devices: as given.
    size: the processes that train together.
    batch_size: examples per replica and step.
    counts_own_steps: whether each global step is one of this process, and not of some worker.
    stop_at: the global step at which all processes are to stop; None: none has asked for it.

  Raises:
    UserError: the batch size cannot be divided among the replicas.
  """
  counts_own_steps = True
  stop_at: Optional[int] = None

  def __init__(self, settings: Settings, worker: Worker, devices: Devices) -> None:
    self.settings, self.worker, self.devices = settings, worker, devices
    self.size = 1 if worker.role == EVALUATOR else worker.size
    self.batch_size = per_replica_batch_size(settings.batch_size, self.num_replicas)

  @property
  def num_replicas(self) -> int:
    """The replicas of all processes."""
    return self.devices.num_replicas * self.size

  @property
  def examples_per_step(self) -> int:
    """The examples of a global step."""
    # An evaluator counts the steps of the processes that train.
    in_turn = self.settings.distribution_strategy == 'parameter_server'
    return self.settings.batch_size // (self.worker.size if in_turn else 1)

  @property
  def examples_per_worker(self) -> int:
    """The examples of a step that this process takes."""
    return self.batch_size * self.devices.num_replicas

  def first_example(self, examples_seen: int) -> int:
    """Returns the position in the order of examples from which the processes read on."""
    return examples_seen

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    """Makes the strategy of training; None is the Estimator's own way on one device."""
    return make_local_strategy(self.settings[groups.Devices], self.devices)

  def make_run_config(self) -> tf.estimator.RunConfig:
    """Makes the RunConfig of training and evaluation."""
    strategy = self.make_strategy()
    if strategy is not None:
      estimator_patches.keep_loss_unscaled(strategy)
    return tf.estimator.RunConfig(
        model_dir=self.settings.model_dir,
        tf_random_seed=self.settings.seed,
        train_distribute=strategy,
        session_config=make_session_config(self.settings[groups.Devices], self.devices,
                                           in_cluster=self.size > 1),
        save_checkpoints_steps=None,  # The hook SaveCheckpoints saves them.
        save_checkpoints_secs=None,
        keep_checkpoint_max=self.settings.keep_checkpoint_max,
        # Summaries can hold collective operations, so that all processes would have to run them.
        # Those of this package come from WriteSummaries.
        save_summary_steps=self.settings.log_every_steps if self.size == 1 else 0,
        log_step_count_steps=None)

  def join(self, facts: Mapping[str, str]) -> None:
    """Waits for the other processes, and checks that all agree on these facts.

    Raises:
      PeerLost: one did not come in time.
      UserError: this one was started otherwise than the chief.
    """

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    """Trains up to a global step, or until a hook stops it."""
    estimator.train(input_fn, hooks=hooks, max_steps=max_steps)

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    """Returns the hooks that this engine needs."""
    return ()

  def announce(self, state: str) -> None:
    """Lets the other processes know what this one does."""

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    """Lets the other processes, which wait meanwhile, know what this one does between steps."""
    yield

  def is_waiting_for_peer(self) -> bool:
    """Whether another process is busy between steps, so that no step may end here."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Has all processes stop at this global step."""
    self.stop_at = global_step

  def finish(self, figures: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Waits, on the chief, until the other processes have finished, and parts from them.

    Args:
      figures: of this process, for the report of the chief.

    Returns:
      The figures of each other worker by its name, on the chief.
    """
    return {}
