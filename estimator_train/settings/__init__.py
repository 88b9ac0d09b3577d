"""Declares the flags, checks the rules between them, and represents their values as Settings."""

from estimator_train.settings.settings import (
    Settings,
    learning_rate_scale,
    per_replica_batch_size,
    steps_for_epochs,
    to_arguments,
    to_flagfile,
    total_train_steps,
)

__all__ = ['Settings', 'learning_rate_scale', 'per_replica_batch_size', 'steps_for_epochs',
           'to_arguments', 'to_flagfile', 'total_train_steps']
