"""What a run finds out and makes before its first step: data, devices, and the Estimator."""

import logging
from typing import Any, Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.cluster.heartbeats import READY, Peers
from estimator_train.cluster.tf_config import Cluster
from estimator_train.datasets import download, image_folder, registry as datasets
from estimator_train.datasets.description import ArraySplit, DataSet, ImageSplit
from estimator_train.distribution.devices import Devices, find_devices, ready
from estimator_train.inputs import bad_images, factory as inputs
from estimator_train.process.start_up import StartUp
from estimator_train.run_dir import run_files
from estimator_train.settings import (
  Settings,
  examples_a_step,
  per_replica_batch_size,
  total_train_steps,
)
from estimator_train.training import cluster_tasks, schedules
from estimator_train.training.building import build_model
from estimator_train.training.checkpoints import chosen_checkpoint, recovery, save_hook
from estimator_train.training.converter import Converted, convert
from estimator_train.training.evaluation import early_stopping

_LOG = logging.getLogger('estimator_train')


class Run(NamedTuple):
  """What a run has found out before its first step.

  Attributes:
    settings: what was asked for.
    dataset: what it reads.
    sizes: how many examples that has.
    skipped: the images that it has besides, and that cannot be decoded.
    devices: where this task of it runs, a replica each.
    cluster: the tasks that train together; None: this one trains alone.
    peers: the connections to them.
    checkpoint: that it goes on from, or is to evaluate; None: a new run.
    first_step: the global step of it.
    examples_seen: the examples that the steps up to it took.
    batch_size: per replica.
    stop_step: the global step to train up to; None where the run does not train.
    converted: the model as an Estimator.
    start_up: what the time since the start of the process went into.
    is_evaluator: whether it only evaluates what the tasks of a cluster save.
    stopped_early: why an evaluation ended the training before; None where none did.
  """
  settings: Settings
  dataset: DataSet
  sizes: inputs.SplitSizes
  skipped: List[bad_images.BadImage]
  devices: Devices
  cluster: Optional[Cluster]
  peers: Optional[Peers]
  checkpoint: Optional[str]
  first_step: int
  examples_seen: int
  batch_size: int
  stop_step: Optional[int]
  converted: Converted
  start_up: StartUp
  is_evaluator: bool
  stopped_early: Optional[str]

  @property
  def num_workers(self) -> int:
    return 1 if self.cluster is None else self.cluster.num_workers

  @property
  def takes_each_step(self) -> bool:
    """Whether each global step is one of this task, and not of some worker."""
    return self.cluster is None or self.settings.distribution_strategy != 'parameter_server'

  @property
  def examples_a_step(self) -> int:
    """The examples of a global step."""
    return examples_a_step(self.settings, self.num_workers)

  @property
  def is_chief(self) -> bool:
    """Whether this task is the one that writes."""
    return self.cluster is None or self.cluster.is_chief

  @property
  def estimator(self) -> tf.estimator.Estimator:
    return self.converted.estimator

  @property
  def conditions(self) -> Dict[str, Any]:
    """What a figure of this run depends on, by the names in the reports."""
    return {
        'global_batch_size': self.settings.batch_size,
        'per_replica_batch_size': self.batch_size,
        'num_replicas': self.devices.num_replicas * self.num_workers,
        'num_workers': self.num_workers,
        'examples_per_step': self.examples_a_step,
        'dataset': self.settings.dataset,
        'model': self.settings.model,
        'distribution_strategy': self.settings.distribution_strategy,
        'devices': list(self.devices.labels),
        'dtype': self.settings.dtype,
        'enable_xla': self.settings.enable_xla,
        'tensorflow_version': tf.version.VERSION,
    }

  @property
  def left_out(self) -> Dict[str, Any]:
    """What a result says of the examples that were left out; nothing unless that was allowed."""
    if self.settings.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.skipped]}


def prepare(settings: Settings, cluster: Optional[Cluster] = None) -> Run:
  """Gets and checks the data, finds the devices, and makes the Estimator.

  Args:
    settings: of the run.
    cluster: the tasks that train together; None: this one does alone.

  Raises:
    PeerLost: another task did not come.
    UserError: something that was given is wrong; nothing has been trained yet.
  """
  assert settings.model_dir is not None
  start_up = StartUp()
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  step_examples = examples_a_step(settings, 1 if cluster is None else cluster.num_workers)
  is_evaluator = cluster is not None and cluster.task.type == 'evaluator'
  if is_evaluator:
    cluster = None
    cluster_tasks.wait_for_checkpoint(settings)
  num_workers = 1 if cluster is None else cluster.num_workers
  devices = find_devices(settings)
  ready(settings, devices)
  batch_size = per_replica_batch_size(settings.batch_size, devices.num_replicas * num_workers)
  found = _find_checkpoint(settings, is_evaluator)
  stopped_early = early_stopping.recorded(settings, found.step) if settings.trains else None
  dataset = _describe(settings)
  run_files.make(settings.model_dir)
  skipped: List[bad_images.BadImage] = []
  if settings.on_bad_image == 'skip':
    dataset, skipped = bad_images.without_bad(dataset, settings)
  sizes = inputs.check_files(dataset, settings)
  start_up.end('data')
  seen, stop_step, schedule = 0, None, schedules.Schedule(settings.learning_rate)
  if settings.trains:
    seen = run_files.examples_seen(settings.model_dir, found.step, step_examples)
    stop_step = total_train_steps(settings, sizes.train, step_examples, found.step, seen)
    schedule = schedules.make(settings, sizes.train, step_examples, stop_step)
  peers = None
  if cluster is not None:
    peers = _join(cluster, settings, found.step, devices, dataset)
    start_up.end('peers')
  balances = settings.trains and settings.class_weights == 'balanced'
  writes = not is_evaluator and (cluster is None or cluster.is_chief)
  if writes and settings.trains:
    recovery.mend(settings.model_dir, found)
  converted = convert(settings, dataset, devices, cluster, writes, schedule,
                      inputs.class_counts(dataset) if balances else None,
                      found.path, run_files.read_flags(chosen_checkpoint.run_folder(settings)))
  if peers is not None:
    peers.state(READY)
  start_up.end('model')
  if settings.trains and writes:
    if converted.schedule is not None and 0 < found.step < (stop_step or 0):
      _warn_of_another_rate(settings, found.step)
    run_files.record(settings, dataset.labels)
  _LOG.info('%s on %s: %s, %d replica(s) on %s, batch size %d global, %d per replica',
            settings.model, settings.dataset, settings.distribution_strategy,
            devices.num_replicas * num_workers,
            ', '.join(devices.labels) + (' of {} workers'.format(num_workers) if cluster else ''),
            settings.batch_size, batch_size)
  if settings.trains and converted.schedule is not None and (
      settings.lr_schedule, settings.lr_warmup_epochs, settings.scale_learning_rate) != (
          'constant', 0., 'none'):
    _LOG.info('learning rate %s%s', converted.schedule, '' if (
        settings.scale_learning_rate == 'none') else '; scaled ({}) from batch size {}'.format(
            settings.scale_learning_rate, settings.base_batch_size))
  return Run(settings, dataset, sizes, skipped, devices, cluster, peers, found.path, found.step,
             seen, batch_size, stop_step, converted, start_up, is_evaluator, stopped_early)


def _find_checkpoint(settings: Settings, is_evaluator: bool) -> recovery.Found:
  """Finds the checkpoint to go on from, or to evaluate."""
  assert settings.model_dir is not None
  if not settings.trains:
    return recovery.Found(*chosen_checkpoint.resolve(settings), passed_over=[])
  if is_evaluator:  # The chief may delete what it looks at.
    return recovery.Found(*save_hook.latest(settings.model_dir), passed_over=[])
  return recovery.find(settings.model_dir)


def _warn_of_another_rate(settings: Settings, first_step: int) -> None:
  assert settings.model_dir is not None
  different = run_files.differences(settings, schedules.flags_of(settings))
  if different:
    _LOG.warning('from step %d on the learning rate is not what it would have been in the run '
                 'before: %s', first_step, ', '.join(different))


def _join(cluster: Cluster, settings: Settings, first_step: int, devices: Devices,
          dataset: DataSet) -> Peers:
  """Waits for the other tasks, and until the chief has converted the model."""
  with tf.Graph().as_default():
    model = build_model(settings, dataset)
    peers = cluster_tasks.join(cluster, settings, cluster_tasks.facts_of_worker(
        first_step, devices, dataset, model))
  if not cluster.is_chief:
    peers.wait_until_started(cluster.chief)
  return peers


def _describe(settings: Settings) -> DataSet:
  """Describes the data set, gets its files where they are missing and published, and says what
  of each class there is to train on."""
  dataset = datasets.describe(settings)
  if dataset.files:
    assert settings.data_dir is not None
    download.fetch(dataset.files, settings.data_dir)
  chosen_checkpoint.check_labels(settings, dataset.labels)
  if isinstance(dataset.train, (ImageSplit, ArraySplit)) and settings.trains:
    counts = image_folder.class_counts(dataset.train, len(dataset.labels))
    _LOG.info('%d images to train on: %s; the largest class is %.1f times the smallest%s',
              sum(counts), ', '.join(map('{} {}'.format, dataset.labels, counts)),
              max(counts) / min(counts),
              '' if settings.class_weights != 'none' or max(counts) < 1.5 * min(counts)
              else ' (--class_weights=balanced evens that out)')
  return dataset
