"""What a run was asked to do: the settings, their checks, and where they come from."""

from estimator_train.settings.settings import (
    Settings,
    examples_a_step,
    growth_of_learning_rate,
    per_replica_batch_size,
    steps_of_epochs,
    to_arguments,
    to_flagfile,
    total_train_steps,
)

__all__ = ['Settings', 'examples_a_step', 'growth_of_learning_rate', 'per_replica_batch_size',
           'steps_of_epochs', 'to_arguments', 'to_flagfile', 'total_train_steps']
