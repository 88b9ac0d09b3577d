"""What the flags of --mode=scaling and --mode=reproduce may be."""

from typing import Any

from estimator_train.configs.workloads import WORKLOADS
from estimator_train.errors import UserError
from estimator_train.settings import choices
from estimator_train.settings.constraints import requirement
from estimator_train.settings.flag import all_flags

# Where a published workload finds its data and runs, not what it does.
_FREE_IN_REPRODUCE = (
    'data_dir', 'model_dir', 'weights', 'num_gpus', 'num_cpu_replicas', 'all_reduce_alg',
    'num_packs', 'gpu_memory_growth', 'inter_op_parallelism_threads',
    'intra_op_parallelism_threads', 'num_parallel_calls', 'seed', 'log_every_steps',
    'save_checkpoints_secs', 'save_retry_secs', 'report_page', 'verbosity')


@requirement('scaling')
def _check_scaling(settings: Any) -> None:
  """Raises a UserError for what a sweep cannot be made of."""
  steps, warmup_steps = settings.train_steps, settings.throughput_warmup_steps
  if settings.train_epochs is not None:
    raise UserError('the points of --mode=scaling differ in batch size, and an epoch in steps',
                    '--train_epochs={}'.format(settings.train_epochs),
                    'give --train_steps=N after the flagfile, or neither')
  if steps is not None and steps <= warmup_steps:
    raise UserError('--mode=scaling times the steps after the warm-up, and there is none',
                    '--train_steps={} --throughput_warmup_steps={}'.format(steps, warmup_steps),
                    'give more than {} steps'.format(warmup_steps))
  if settings.scale_over == 'workers':
    _check_over_workers(settings)
  elif settings.distribution_strategy in choices.SINGLE_REPLICA_STRATEGIES:
    raise UserError('--mode=scaling runs several replicas',
                    '--distribution_strategy=' + settings.distribution_strategy,
                    'give --distribution_strategy=mirrored or central_storage')
  if settings.cache_features:
    raise UserError('--mode=scaling compares real with made-up images, and with --cache_features '
                    'training reads none', '--cache_features', 'leave it out')


def _check_over_workers(settings: Any) -> None:
  # mirrored is the default, and what a single worker's run is.
  if settings.distribution_strategy not in ('mirrored', 'multi_worker_mirrored'):
    raise UserError('--scale_over=workers is for workers that go step by step together',
                    '--distribution_strategy=' + settings.distribution_strategy,
                    'give --distribution_strategy=multi_worker_mirrored')
  if settings.all_reduce_alg in choices.IN_ONE_MACHINE:
    raise UserError('--all_reduce_alg={} is not for several workers'.format(
        settings.all_reduce_alg), '--scale_over=workers', 'leave --all_reduce_alg out')


@requirement('reproduce')
def _check_reproduce(settings: Any) -> None:
  """Raises a UserError for what would not be the published workload."""
  if settings.workload is None:
    raise UserError('which workload to reproduce is not said', '--mode=reproduce',
                    'give --workload=NAME, one of ' + ', '.join(WORKLOADS))
  for name, flag in all_flags().items():
    if name not in _FREE_IN_REPRODUCE + ('mode', 'workload') and (
        getattr(settings, name) != flag.default):
      raise UserError('--mode=reproduce runs a workload as it was published',
                      '--{}={}'.format(name, getattr(settings, name)),
                      'leave it out, or run the flagfile by itself')
