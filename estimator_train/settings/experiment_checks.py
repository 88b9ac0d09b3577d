"""Defines the rules for the flags of --mode=scaling and --mode=reproduce.

These rules are requirements, which hold only in the mode that is given to their decorator.
"""

from typing import Any

from estimator_train.configs.workloads import WORKLOADS
from estimator_train.errors import UserError
from estimator_train.settings import choices
from estimator_train.settings.flag import all_flags
from estimator_train.settings.requirements import requirement

# These flags do not change the published workload, so --mode=reproduce accepts them.
_REPRODUCE_FLAGS = (
    'data_dir', 'model_dir', 'weights', 'num_gpus', 'num_cpu_replicas', 'all_reduce_alg',
    'num_packs', 'gpu_memory_growth', 'inter_op_parallelism_threads',
    'intra_op_parallelism_threads', 'num_parallel_calls', 'seed', 'log_every_steps',
    'save_checkpoints_secs', 'save_retry_secs', 'report_page', 'verbosity')


@requirement('scaling')
def _check_scaling(settings: Any) -> None:
  """Raises a UserError if --mode=scaling cannot run with the flags."""
  steps, warmup_steps = settings.train_steps, settings.throughput_warmup_steps
  if settings.train_epochs is not None:
    raise UserError('--mode=scaling takes no --train_epochs, as its runs differ in steps per epoch',
                    '--train_epochs={}'.format(settings.train_epochs),
                    'give --train_steps=N on the command line instead')
  if steps is not None and steps <= warmup_steps:
    raise UserError('--mode=scaling requires more steps than --throughput_warmup_steps',
                    '--train_steps={} --throughput_warmup_steps={}'.format(steps, warmup_steps),
                    'give more than {} steps'.format(warmup_steps))
  if settings.scale_over == 'workers':
    _check_scaling_over_workers(settings)
  elif settings.distribution_strategy in choices.SINGLE_REPLICA_STRATEGIES:
    raise UserError('--mode=scaling requires a strategy for several replicas',
                    '--distribution_strategy=' + settings.distribution_strategy,
                    'give --distribution_strategy=mirrored or central_storage')
  if settings.cache_features:
    raise UserError('--mode=scaling compares real with synthetic images, but training with '
                    '--cache_features reads no images', '--cache_features', 'omit it')


def _check_scaling_over_workers(settings: Any) -> None:
  # The default strategy, mirrored, is accepted: the sweep replaces it by multi_worker_mirrored.
  if settings.distribution_strategy not in ('mirrored', 'multi_worker_mirrored', 'horovod'):
    raise UserError('--scale_over=workers requires synchronous workers',
                    '--distribution_strategy=' + settings.distribution_strategy,
                    'give --distribution_strategy=multi_worker_mirrored or horovod')
  if settings.all_reduce_alg in choices.SINGLE_HOST_ALL_REDUCE:
    raise UserError('--all_reduce_alg={} does not support several workers'.format(
        settings.all_reduce_alg), '--scale_over=workers', 'omit --all_reduce_alg')


@requirement('reproduce')
def _check_reproduce(settings: Any) -> None:
  """Raises a UserError if --workload is missing, or if a flag changes the published workload."""
  if settings.workload is None:
    raise UserError('--mode=reproduce requires --workload', '--mode=reproduce without --workload',
                    'give --workload=NAME, one of ' + ', '.join(WORKLOADS))
  for name, flag in all_flags().items():
    if name not in _REPRODUCE_FLAGS + ('mode', 'workload') and (
        getattr(settings, name) != flag.default):
      raise UserError('--mode=reproduce runs a workload with its published flags',
                      '--{}={}'.format(name, getattr(settings, name)),
                      'omit it, or run the flagfile without --mode=reproduce')
