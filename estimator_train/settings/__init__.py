"""The settings of a run: the value of each flag, the rules between flags, and flagfiles."""

from estimator_train.settings.settings import (
    Settings,
    examples_per_step,
    learning_rate_scale,
    per_replica_batch_size,
    steps_for_epochs,
    to_arguments,
    to_flagfile,
    total_train_steps,
)

__all__ = ['Settings', 'examples_per_step', 'learning_rate_scale', 'per_replica_batch_size',
           'steps_for_epochs', 'to_arguments', 'to_flagfile', 'total_train_steps']
