"""The published workloads: the figures of each, and the runs that measure them again.

The figures are quoted as published; where one is known to be wrong, its note says so. How a run is
set up is in its flagfile.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

# What a run left: {'throughput': throughput.json, 'evaluation': evaluation.json}.
Ran = Dict[str, Dict[str, Any]]


class Figure(NamedTuple):
  """One figure of a workload.

  Attributes:
    what: it is.
    published: as it was; None: none was.
    value: the same as numbers, from the lowest to the highest; None where it is no number.
    conditions: under which it was published.
    measure: gets it from what the run, or all runs by their names, left.
    text: how to write it.
    of_speed: whether other devices make it another figure.
    note: what else must be known to compare the two.
  """
  what: str
  published: Optional[str]
  value: Optional[Tuple[float, float]]
  conditions: str
  measure: Callable[[Any], float]
  text: str
  of_speed: bool = False
  note: Optional[str] = None


class Part(NamedTuple):
  """One run of a workload.

  Attributes:
    name: of the part.
    flagfile: of the run.
    flags: that it needs besides.
    figures: that it gives.
    folder: its `model_dir`, below that of the workload; parts of one folder go on from each other.
    gpus: how many it was published on.
    needs_gpus: whether it would take days without.
  """
  name: str
  flagfile: str
  flags: Dict[str, Any]
  figures: Sequence[Figure]
  folder: str
  gpus: int = 1
  needs_gpus: bool = False


class Workload(NamedTuple):
  """A published workload.

  Attributes:
    parts: its runs, in order.
    across: figures that take all runs, by the names of the parts.
  """
  parts: Sequence[Part]
  across: Sequence[Figure] = ()


def _accuracy(ran: Ran) -> float:
  return ran['evaluation']['accuracy']


def _average_loss(ran: Ran) -> float:
  return ran['evaluation']['average_loss']


def _images_per_sec(ran: Ran) -> float:
  return ran['throughput']['examples_per_sec']


def _steps_per_sec(ran: Ran) -> float:
  return _images_per_sec(ran) / ran['throughput']['global_batch_size']


def _secs_of_examples(count: int) -> Callable[[Ran], float]:
  return lambda ran: count / _images_per_sec(ran)


def _spread_of_accuracy(runs: Dict[str, Ran]) -> float:
  accuracies = [_accuracy(ran) for ran in runs.values()]
  return max(accuracies) - min(accuracies)


def _speed_up_of_8(runs: Dict[str, Ran]) -> float:
  return _images_per_sec(runs['8_gpus']) / _images_per_sec(runs['1_gpu'])


_SEED = 'another seed and order of the examples'
_FASHION_2_GPUS = '2 GPUs, 128 per replica'
_FASHION_2_GPUS_1024 = '2 GPUs, 512 per replica, 5 epochs'
_OCT_2_GPUS = '2 GPUs, 32 per replica, ImageNet weights'

_FASHION_MNIST = Workload((
    Part('1000_steps', 'fashion_mnist', {}, (
        Figure('test accuracy at step 1,000', '0.883 to 0.890', (.883, .890), _FASHION_2_GPUS,
               _accuracy, '{:.4f}', note=_SEED),
        Figure('steps/s', '230', (230., 230.), _FASHION_2_GPUS, _steps_per_sec, '{:.1f}',
               of_speed=True)), folder='256', gpus=2),
    Part('2000_steps', 'fashion_mnist', {'train_steps': 2000}, (
        Figure('test accuracy at step 2,000', '0.8965', (.8965, .8965), _FASHION_2_GPUS,
               _accuracy, '{:.4f}', note=_SEED),
        Figure('test loss at step 2,000', '0.283', (.283, .283), _FASHION_2_GPUS, _average_loss,
               '{:.3f}', note=_SEED + '; the mean over examples here, over batches there')),
         folder='256', gpus=2),
    Part('batch_1024', 'fashion_mnist', {'batch_size': 1024, 'train_epochs': 5}, (
        Figure('test accuracy after 293 steps', '0.845', (.845, .845), _FASHION_2_GPUS_1024,
               _accuracy, '{:.4f}', note=_SEED),
        Figure('images/s', '60,560', (60560., 60560.), _FASHION_2_GPUS_1024, _images_per_sec,
               '{:,.0f}', True, 'batch over mean step time there, examples over wall time here'),
        Figure('total time of 293 steps', 'half of the truth', None, _FASHION_2_GPUS_1024,
               _secs_of_examples(293 * 1024), '{:.1f} s', True,
               'the first release is wrong: it divided the sum of the step times by the number of '
               'GPUs, which run at the same time; double its figure before comparing')),
         folder='1024', gpus=2),
))

_OCT2017 = Workload((
    Part('1000_steps', 'oct2017', {'train_steps': 1000}, (
        Figure('test accuracy at step 1,000', '0.950', (.95, .95), _OCT_2_GPUS, _accuracy,
               '{:.4f}', note=_SEED),), folder='64', gpus=2, needs_gpus=True),
    Part('2_epochs', 'oct2017', {}, (
        Figure('test accuracy at step 2,609', '0.979', (.979, .979), _OCT_2_GPUS, _accuracy,
               '{:.4f}', note=_SEED),
        Figure('images/s', '637', (637., 637.), _OCT_2_GPUS, _images_per_sec, '{:,.0f}',
               of_speed=True)),
         folder='64', gpus=2, needs_gpus=True),
))

_MNIST_TF_DATA = Workload((
    Part('files', 'mnist_tf_data', {'cache': 'none'}, (
        Figure('test accuracy, tf.data', None, None, '10 epochs at 256 per replica', _accuracy,
               '{:.4f}'),), folder='files'),
    Part('arrays', 'mnist_tf_data', {'cache': 'memory'}, (
        Figure('test accuracy, NumPy arrays', None, None, '10 epochs at 256 per replica',
               _accuracy, '{:.4f}'),), folder='arrays'),
    Part('replicas', 'mnist_tf_data', {'cache': 'none', 'batch_size': 512, 'num_cpu_replicas': 2}, (
        Figure('test accuracy, tf.data on 2 replicas', None, None, '10 epochs at 256 per replica',
               _accuracy, '{:.4f}'),), folder='replicas',
         gpus=2),
), (
    Figure('largest difference of the three', 'they reach the same place', None, '',
           _spread_of_accuracy, '{:.4f}',
           note='as many epochs at twice the global batch are half as many steps'),
))

_MNIST_8GPU = Workload((
    Part('1_gpu', 'mnist_8gpu', {'batch_size': 128, 'eval_every_steps': 469}, (
        Figure('seconds an epoch', '47', (47., 47.), '1 GPU, 128 per replica',
               _secs_of_examples(60000), '{:.1f}', of_speed=True),
        Figure('test accuracy after 12 epochs', '0.989', (.989, .989), '1 GPU, 128 per replica',
               _accuracy, '{:.4f}', note=_SEED)), folder='1_gpu', gpus=1, needs_gpus=True),
    Part('8_gpus', 'mnist_8gpu', {}, (
        Figure('seconds an epoch', '7', (7., 7.), '8 GPUs, 128 per replica',
               _secs_of_examples(60000), '{:.1f}', of_speed=True),
        Figure('test accuracy after 12 epochs', '0.992', (.992, .992), '8 GPUs, 128 per replica',
               _accuracy, '{:.4f}', note=_SEED)), folder='8_gpus', gpus=8, needs_gpus=True),
), (
    Figure('speed-up of 8 GPUs', '6.7', (6.7, 6.7), '8 GPUs beside 1, 84 % efficiency',
           _speed_up_of_8, '{:.1f}', of_speed=True),
))

_MNIST_MULTI_WORKER = Workload((
    Part('simple', 'mnist_multi_worker_simple', {}, (
        Figure('test accuracy after 210 steps, simple form', None, None, 'SGD, 64 per worker',
               _accuracy, '{:.4f}'),), folder='simple'),
    Part('practical', 'mnist_multi_worker_practical', {}, (
        Figure('test accuracy after 12 epochs, practical form', None, None,
               '64 per replica, learning rate falling from 1e-3 to 1e-5', _accuracy,
               '{:.4f}'),), folder='practical'),
))

WORKLOADS = {
    'fashion_mnist': _FASHION_MNIST,
    'oct2017': _OCT2017,
    'mnist_tf_data': _MNIST_TF_DATA,
    'mnist_8gpu': _MNIST_8GPU,
    'mnist_multi_worker': _MNIST_MULTI_WORKER,
}
