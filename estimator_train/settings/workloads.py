"""Lists the flagfiles in `configs/`, and the published results of the workloads that they run."""

from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

FLAGFILES_DIR = str(Path(__file__).resolve().parents[1] / 'configs')
FLAGFILE_NAMES = sorted(path.stem for path in Path(FLAGFILES_DIR).glob('*.flags'))
# Contents of the reports of a run: {'throughput': throughput.json, 'evaluation': evaluation.json}.
RunResults = Dict[str, Dict[str, Any]]


class PublishedValue(NamedTuple):
  """The published value of a quantity of a workload, and how to measure the same quantity.

  Attributes:
    name: the quantity, with its unit.
    published: the value, or the lowest and the highest value, as text; None if none was published.
    conditions: the conditions of the published measurement.
    measure: takes the RunResults of the part, and returns the measured value. For a combined
      figure, it takes a dict from the names of all parts to their RunResults.
    number_format: the format string of the measured value.
    depends_on_devices: whether the value is a speed or a time.
    caveat: a reason, other than the devices, why the measured value may differ.
  """
  name: str
  published: Optional[str]
  conditions: str
  measure: Callable[[Any], float]
  number_format: str
  depends_on_devices: bool = False
  caveat: Optional[str] = None


class WorkloadPart(NamedTuple):
  """One run of a workload.

  Attributes:
    flagfile: the name of the flagfile, without its extension.
    flags: further flags of the run, by name. They override the flags in the flagfile.
    folder: the folder of the run in the `model_dir` of --mode=reproduce. If the previous part has
      the same folder, this part resumes its run.
    num_gpus: the number of GPUs of the published run.
    needs_all_gpus: whether the part is skipped on a machine with fewer GPUs, on which it would take
      days.
  """
  name: str
  flagfile: str
  flags: Dict[str, Any]
  figures: Sequence[PublishedValue]
  folder: str
  num_gpus: int = 1
  needs_all_gpus: bool = False


class Workload(NamedTuple):
  """A published workload: its runs, in order, and figures that combine the results of the runs."""
  parts: Sequence[WorkloadPart]
  combined_figures: Sequence[PublishedValue] = ()


def _accuracy(results: RunResults) -> float:
  return results['evaluation']['accuracy']


def _average_loss(results: RunResults) -> float:
  return results['evaluation']['average_loss']


def _images_per_sec(results: RunResults) -> float:
  return results['throughput']['examples_per_sec']


def _steps_per_sec(results: RunResults) -> float:
  return _images_per_sec(results) / results['throughput']['global_batch_size']


def _measure_secs_for_examples(count: int) -> Callable[[RunResults], float]:
  """Returns a function that computes how many seconds training takes for `count` examples."""
  return lambda results: count / _images_per_sec(results)


def _range_of_accuracies(part_results: Dict[str, RunResults]) -> float:
  accuracies = [_accuracy(results) for results in part_results.values()]
  return max(accuracies) - min(accuracies)


def _speed_up_of_8_gpus(part_results: Dict[str, RunResults]) -> float:
  return _images_per_sec(part_results['8_gpus']) / _images_per_sec(part_results['1_gpu'])


def _published_accuracy(when: str, published: str, conditions: str) -> PublishedValue:
  return PublishedValue('test accuracy ' + when, published, conditions, _accuracy, '{:.4f}',
                        caveat=_SEED_CAVEAT)


_SEED_CAVEAT = 'different seed and order of the examples'
_FASHION_2_GPUS = '2 GPUs, 128 per replica'
_FASHION_2_GPUS_1024 = '2 GPUs, 512 per replica, 5 epochs'
_10_EPOCHS = '10 epochs at 256 per replica'
_OCT_2_GPUS = '2 GPUs, 32 per replica, ImageNet weights'

WORKLOADS: Dict[str, Workload] = {}

WORKLOADS['fashion_mnist'] = Workload((
    WorkloadPart('1000_steps', 'fashion_mnist', {}, (
        _published_accuracy('at step 1,000', '0.883 to 0.890', _FASHION_2_GPUS),
        PublishedValue('steps/s', '230', _FASHION_2_GPUS, _steps_per_sec, '{:.1f}',
                       depends_on_devices=True)), folder='256', num_gpus=2),
    WorkloadPart('2000_steps', 'fashion_mnist', {'train_steps': 2000}, (
        _published_accuracy('at step 2,000', '0.8965', _FASHION_2_GPUS),
        PublishedValue('test loss at step 2,000', '0.283', _FASHION_2_GPUS, _average_loss, '{:.3f}',
                       caveat=_SEED_CAVEAT + '; mean over batches (published) or examples '
                       '(measured)')),
                 folder='256', num_gpus=2),
    WorkloadPart('batch_1024', 'fashion_mnist', {'batch_size': 1024, 'train_epochs': 5}, (
        _published_accuracy('after 293 steps', '0.845', _FASHION_2_GPUS_1024),
        PublishedValue('images/s', '60,560', _FASHION_2_GPUS_1024, _images_per_sec, '{:,.0f}', True,
                       'batch size / mean step time (published) or examples / wall time '
                       '(measured)'),
        PublishedValue('total time of 293 steps', 'half the actual time', _FASHION_2_GPUS_1024,
                       _measure_secs_for_examples(293 * 1024), '{:.1f} s', True,
                       'the first release of the published script divided the sum of the step '
                       'times by the number of GPUs, although the GPUs run in parallel; double the '
                       'published figure to compare')), folder='1024', num_gpus=2),
))

WORKLOADS['oct2017'] = Workload((
    WorkloadPart('1000_steps', 'oct2017', {
        'train_steps': 1000, 'input_pipeline': 'published'}, (
            _published_accuracy('at step 1,000', '0.950', _OCT_2_GPUS),),
                 folder='64', num_gpus=2, needs_all_gpus=True),
    WorkloadPart('2_epochs', 'oct2017', {'input_pipeline': 'published'}, (
        _published_accuracy('at step 2,609', '0.979', _OCT_2_GPUS),
        PublishedValue('images/s', '637', _OCT_2_GPUS, _images_per_sec, '{:,.0f}',
                       depends_on_devices=True)), folder='64', num_gpus=2, needs_all_gpus=True),
))

WORKLOADS['mnist_tf_data'] = Workload((
    WorkloadPart('files', 'mnist_tf_data', {'cache': 'none'}, (
        PublishedValue('test accuracy, tf.data', None, _10_EPOCHS, _accuracy, '{:.4f}'),),
                 folder='files'),
    WorkloadPart('arrays', 'mnist_tf_data', {'cache': 'memory'}, (
        PublishedValue('test accuracy, NumPy arrays', None, _10_EPOCHS, _accuracy, '{:.4f}'),),
                 folder='arrays'),
    WorkloadPart('replicas', 'mnist_tf_data', {
        'cache': 'none', 'batch_size': 512, 'num_cpu_replicas': 2}, (
            PublishedValue('test accuracy, tf.data on 2 replicas', None, _10_EPOCHS, _accuracy,
                           '{:.4f}'),),
                 folder='replicas', num_gpus=2),
), (
    PublishedValue('largest difference of the three test accuracies', 'the same result', '',
                   _range_of_accuracies, '{:.4f}',
                   caveat='with twice the global batch size, the same epochs take half as many '
                   'steps'),
))

WORKLOADS['mnist_8gpu'] = Workload((
    WorkloadPart('1_gpu', 'mnist_8gpu', {'batch_size': 128, 'eval_every_steps': 469}, (
        PublishedValue('seconds per epoch', '47', '1 GPU, 128 per replica',
                       _measure_secs_for_examples(60000), '{:.1f}', depends_on_devices=True),
        _published_accuracy('after 12 epochs', '0.989', '1 GPU, 128 per replica')),
                 folder='1_gpu', num_gpus=1, needs_all_gpus=True),
    WorkloadPart('8_gpus', 'mnist_8gpu', {}, (
        PublishedValue('seconds per epoch', '7', '8 GPUs, 128 per replica',
                       _measure_secs_for_examples(60000), '{:.1f}', depends_on_devices=True),
        _published_accuracy('after 12 epochs', '0.992', '8 GPUs, 128 per replica')),
                 folder='8_gpus', num_gpus=8, needs_all_gpus=True),
), (
    PublishedValue('speed-up of 8 GPUs', '6.7', '8 GPUs and 1 GPU, 84 % efficiency',
                   _speed_up_of_8_gpus, '{:.1f}', depends_on_devices=True),
))

# The publication has two examples. This package calls them the simple and the practical form.
WORKLOADS['mnist_multi_worker'] = Workload((
    WorkloadPart('simple', 'mnist_multi_worker_simple', {}, (
        PublishedValue('test accuracy after 210 steps, simple form', None, 'SGD, 64 per worker',
                       _accuracy, '{:.4f}'),), folder='simple'),
    WorkloadPart('practical', 'mnist_multi_worker_practical', {}, (
        PublishedValue('test accuracy after 12 epochs, practical form', None,
                       '64 per replica, learning rate decaying from 1e-3 to 1e-5', _accuracy,
                       '{:.4f}'),),
                 folder='practical'),
))
