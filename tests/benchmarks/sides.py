"""The sides of the comparisons: how each is run, and what it reports.

A side is a process of its own. Its figures are seconds from just before it is spawned, images a
second once it is warm, and the peak of its memory in millions of bytes.
"""

import atexit
import contextlib
import functools
import gzip
import itertools
import json
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import common
import numpy as np
from pairs import Conditions, Figures, Side
from PIL import Image

from estimator_train.system import machine

FOLDER = os.path.dirname(os.path.abspath(__file__))
BATCH_SIZE = 256
RATE, PEAK = 'images_per_sec', 'peak_mb'
PAUSES = 'first_evaluation_secs', 'evaluation_secs', 'checkpoint_secs'

# Of a frozen VGG16: what the article trains, in batches that small machines take.
FEATURES_BATCH_SIZE = 16
TRAINABLE_LAYERS = 4


def _script(name: str, arguments: Sequence[str], build: str, conditions: Conditions,
            variables: Mapping[str, str] = common.NOTHING) -> common.Child:
  return common.run_python([os.path.join(FOLDER, name)] + list(arguments),
                           conditions.deadline_secs, conditions.pythons[build], variables)


def _figures(child: common.Child, names: Sequence[str]) -> Figures:
  found = json.loads(child.lines[-1])
  return {name: found[name] for name in names}


def _data(conditions: Conditions) -> List[str]:
  return ['--dataset=' + ('fashion_mnist_sample' if conditions.quick else 'fashion_mnist'),
          '--data_dir=' + conditions.data_dir]


def _steps(conditions: Conditions, measured: int) -> Tuple[int, int]:
  """Returns the steps of a training and how many of them are its warm-up: a tenth of the others."""
  warmup = 2 if conditions.quick else max(measured // 10, 2)
  return (3 if conditions.quick else measured) + warmup, warmup


def article(train_steps: int) -> Side:
  """The workflow of 2018: its start, its last step, its memory."""
  def run(conditions: Conditions) -> Figures:
    steps = 3 if conditions.quick else train_steps
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      child = _script('article_fashion_mnist.py', [
          '--data_dir=' + conditions.data_dir, '--model_dir=' + model_dir,
          '--train_steps={}'.format(steps), '--batch_size={}'.format(BATCH_SIZE)],
                      'stock', conditions)
    return _start_figures(child)
  return run


def package_run(build: str, train_steps: int) -> Side:
  """The same by this package."""
  def run(conditions: Conditions) -> Figures:
    steps = 3 if conditions.quick else train_steps
    child, _ = common.run_package(
        ['--mode=train_and_evaluate', '--train_steps={}'.format(steps), '--eval_every_epochs=0',
         '--batch_size={}'.format(BATCH_SIZE), '--log_every_steps=1'] + _data(conditions),
        conditions.deadline_secs, python=conditions.pythons[build])
    return {'first_step_secs': child.secs_until('step 1/'),
            'last_step_secs': child.secs_until('step {0}/{0}'.format(steps)),
            PEAK: child.peak_bytes / 1e6}
  return run


class Workload(NamedTuple):
  """A published workload, in one process.

  Attributes:
    model, optimizer: as its flagfile has them.
    batch_size: that too, unless small machines cannot take it.
    steps: of a training, besides its warm-up.
    more: further flags.
    from_images: whether it reads image files, and not Fashion-MNIST's, which MNIST's are like.
    synthetic_size: height and width of the synthetic images that it trains on; None: on files.
  """
  model: str
  optimizer: str
  batch_size: int
  steps: int
  more: Sequence[str] = ()
  from_images: bool = False
  synthetic_size: Optional[int] = None

  def flags(self, conditions: Conditions) -> List[str]:
    """Returns what it trains, and on what."""
    flags = ['--model=' + self.model, '--optimizer=' + self.optimizer,
             '--batch_size={}'.format(self.batch_size)] + list(self.more)
    if self.synthetic_size is not None:
      return flags + ['--dataset=synthetic', '--image_size={0},{0}'.format(self.size(conditions))]
    if not self.from_images:
      return flags + _data(conditions)
    return flags + ['--dataset=image_folder', '--train_pattern={}'.format(conditions.train_pattern),
                    '--image_size={},{}'.format(*_image_size(conditions))]

  def size(self, conditions: Conditions) -> int:
    """Returns the height and width of its images."""
    if self.synthetic_size is None:
      return 28
    return 32 if conditions.quick else self.synthetic_size


WORKLOADS = {
    'fashion_mnist': Workload('fashion_cnn', 'adam', BATCH_SIZE, 200),
    'mnist_tf_data': Workload('mnist_conv8', 'adam', BATCH_SIZE, 200),
    # A GPU's share of the published 1024.
    'mnist_8gpu': Workload('mnist_deep', 'rmsprop', 128, 30),
    'mnist_multi_worker_simple': Workload('mnist_dense', 'sgd', 64, 1000),
    'mnist_multi_worker_practical': Workload('mnist_practical', 'adam', 64, 900,
                                              ['--cache=memory']),
    'oct2017': Workload('vgg16', 'adam', 16, 10,
                         ['--trainable_layers={}'.format(TRAINABLE_LAYERS), '--prefetch=2'], True),
}
# What PyTorch trains, too. A step of the large networks takes seconds on small machines.
TORCH_WORKLOADS = {
    'fashion': WORKLOADS['fashion_mnist'],
    'vgg16': Workload('vgg16', 'adam', 16, 4, ['--trainable_layers={}'.format(TRAINABLE_LAYERS)],
                      synthetic_size=224),
    'resnet50': Workload('resnet50', 'adam', 32, 4, synthetic_size=224),
}


def training(workload: Workload, build: str, flags: Sequence[str] = (),
             variables: Mapping[str, str] = common.NOTHING,
             module: str = 'estimator_train') -> Side:
  """A workload's training once it is warm, and its memory."""
  def run(conditions: Conditions) -> Figures:
    steps, warmup = _steps(conditions, workload.steps)
    done = common.run_package(
        ['--mode=train', '--report_page=false', '--train_steps={}'.format(steps),
         '--throughput_warmup_steps={}'.format(warmup)] + workload.flags(conditions) + list(flags),
        conditions.deadline_secs, module, conditions.pythons[build], variables)
    return {RATE: done.throughput['examples_per_sec'], PEAK: done.child.peak_bytes / 1e6}
  return run


def unpadded(workload: Workload, build: str) -> Side:
  """The same by a module of this folder, which pads no images for gradients."""
  def run(conditions: Conditions) -> Figures:
    paths = [str(common.ROOT), FOLDER] + [
        path for path in (os.environ.get('PYTHONPATH'),) if path]
    return training(workload, build, variables={'PYTHONPATH': os.pathsep.join(paths)},
                    module='unpadded_gradients')(conditions)
  return run


steady = functools.partial(training, WORKLOADS['fashion_mnist'])


def parts(workload: Workload, build: str) -> Side:
  """Its model alone, on synthetic images, and its input alone."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      child = common.run_python(
          ['-m', 'estimator_train', '--mode=input_benchmark', '--model_dir=' + model_dir]
          + workload.flags(conditions), conditions.deadline_secs, conditions.pythons[build])
    found = json.loads(child.lines[-1])
    return {'model': found['model_images_per_sec'], 'input': found['warm_images_per_sec']}
  return run


def _peer(workload: Workload, script: str, build: str, options: Sequence[str]) -> Side:
  """The same training by others; the options determine how their script does it."""
  def run(conditions: Conditions) -> Figures:
    steps, warmup = _steps(conditions, workload.steps)
    return _figures(_script(script, [
        '--data_dir=' + conditions.data_dir, '--train_steps={}'.format(steps),
        '--warmup_steps={}'.format(warmup), '--batch_size={}'.format(workload.batch_size)]
                            + list(options), build, conditions), [RATE])
  return run


keras_fit = _peer(WORKLOADS['fashion_mnist'], 'keras_fit.py', 'stock', [])


def torch(workload: Workload, *options: str) -> Side:
  return _network_of_peer(workload, 'torch_training.py', 'torch', options)


def keras3(workload: Workload) -> Side:
  return _network_of_peer(workload, 'keras3_training.py', 'keras3', ())


def _network_of_peer(workload: Workload, script: str, build: str, options: Sequence[str]) -> Side:
  def run(conditions: Conditions) -> Figures:
    frozen = [flag for flag in workload.more if flag.startswith('--trainable_layers=')]
    return _peer(workload, script, build, [
        '--model=' + workload.model, '--image_size={}'.format(workload.size(conditions))]
                 + frozen + list(options))(conditions)
  return run


def keras3_start(train_steps: int) -> Side:
  """A training of Fashion-MNIST by Keras 3: its start, its last step, its memory."""
  def run(conditions: Conditions) -> Figures:
    steps = 3 if conditions.quick else train_steps
    child = _script('keras3_training.py', [
        '--data_dir=' + conditions.data_dir, '--train_steps={}'.format(steps), '--warmup_steps=1',
        '--batch_size={}'.format(BATCH_SIZE)], 'keras3', conditions)
    return _start_figures(child)
  return run


def pauses(build: str, pause_steps: int = 40) -> Side:
  """The first evaluation on all test images of Fashion-MNIST, later ones, and later checkpoints."""
  def run(conditions: Conditions) -> Figures:
    steps = 6 * pause_steps
    if build == 'keras3':
      return _figures(_script('keras3_training.py', [
          '--data_dir=' + conditions.data_dir, '--train_steps={}'.format(steps),
          '--pause_steps={}'.format(pause_steps)], build, conditions), PAUSES)

    def mean_secs(train_steps: int, warmup_steps: int) -> Dict[str, float]:
      flags = ['--train_steps={}'.format(train_steps), '--eval_every_steps={}'.format(pause_steps),
               '--save_checkpoints_steps={}'.format(pause_steps),
               '--throughput_warmup_steps={}'.format(warmup_steps)]
      done = common.run_package(flags + WORKLOADS['fashion_mnist'].flags(conditions),
                                conditions.deadline_secs, python=conditions.pythons[build])
      return {kind: found['secs'] / found['count']
              for kind, found in done.throughput['pauses'].items()}

    # The evaluation of the last step is no pause.
    first, later = mean_secs(2 * pause_steps, 1), mean_secs(steps, pause_steps + 1)
    return dict(zip(PAUSES, (first['evaluation'], later['evaluation'], later['checkpoint'])))
  return run


def _start_figures(child: common.Child) -> Figures:
  return {'first_step_secs': child.secs_until(common.ARTICLE_FIRST_STEP),
          'last_step_secs': child.secs_until(common.ARTICLE_LAST_STEP),
          PEAK: child.peak_bytes / 1e6}


def torch_images(conditions: Conditions) -> Figures:
  assert conditions.train_pattern is not None
  return _figures(_script('torch_images.py', [
      '--train_pattern=' + conditions.train_pattern,
      '--image_size={},{}'.format(*_image_size(conditions))], 'torch', conditions), [RATE])


def _image_size(conditions: Conditions) -> Sequence[int]:
  return (32, 32) if conditions.quick else (224, 224)


def _measures(part: str, build: str, conditions: Conditions, **arguments: Any) -> Dict[str, Any]:
  data = {'train_pattern': conditions.train_pattern, 'image_size': _image_size(conditions),
          'shuffle_buffer': 2048}
  # What the program sets by itself before TensorFlow is imported; this only uses its modules.
  sets = machine.onednn_variables() if build == 'onednn' else {}
  child = _script('image_input_measures.py', [part, json.dumps(dict(arguments, data=data))],
                  build, conditions,
                  {name: os.environ.get(name, value) for name, value in sets.items()})
  return json.loads(child.lines[-1])


def images(part: str, **arguments: Any) -> Side:
  """A pass of the input from image files: published, this package's, and its yardsticks."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
      more = dict(arguments, folder=folder) if part in ('cache', 'fill') else arguments
      return _measures(part, 'stock', conditions, batch_size=32, **more)
  return run


def vgg16(part: str, build: str, steps: int) -> Side:
  """Training steps of VGG16 whose last block trains, once its features are computed."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      return _measures(
          part, build, conditions, steps=2 if conditions.quick else steps,
          images=32 if conditions.quick else 128, batch_size=FEATURES_BATCH_SIZE, warmup_steps=2,
          trainable_layers=TRAINABLE_LAYERS, model_dir=model_dir)
  return run


def workers(count: int) -> Side:
  """Workers with a core each, of which a single one takes each in turn."""
  cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
  workload = WORKLOADS['fashion_mnist']._replace(batch_size=128 * count, steps=100)
  cluster = 'estimator_train.launcher.local_cluster'

  def run(conditions: Conditions) -> Figures:
    steps, warmup = _steps(conditions, workload.steps)
    flags = (['--mode=train', '--report_page=false', '--train_steps={}'.format(steps),
              '--throughput_warmup_steps={}'.format(warmup), '--num_gpus=0',
              '--distribution_strategy=multi_worker_mirrored',
              # One to compute, and one to take what comes from the other worker meanwhile.
              '--intra_op_parallelism_threads=1', '--inter_op_parallelism_threads=2']
             + workload.flags(conditions))
    if count == 1:
      with _pinned_to(next(cores)):
        done = common.run_package(flags, conditions.deadline_secs)
    else:
      done = common.run_package(['--local_workers={}'.format(count), '--local_cores=1'] + flags,
                                conditions.deadline_secs, cluster)
    return {RATE: done.throughput['examples_per_sec'],
            'p50_step_ms': 1e3 * done.throughput['step_secs']['p50']}
  return run


@contextlib.contextmanager
def _pinned_to(core: int) -> Iterator[None]:
  """Keeps this process, and those it starts, on one core as long as it is entered."""
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, [core])
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


@functools.lru_cache()
def _prediction_files(conditions_key: Tuple[str, bool]) -> Dict[str, str]:
  """Makes a trained model, JPEGs of test images, and TFRecord files of them, until the exit."""
  data_dir, quick = conditions_key
  folder = tempfile.mkdtemp(prefix='benchmark-')
  atexit.register(shutil.rmtree, folder)
  files = {name: os.path.join(folder, name) for name in ('run', 'images', 'records')}
  with gzip.open(os.path.join(data_dir, common.DATA_FILES[2])) as file:
    pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
  for index, image in enumerate(pixels[:100 if quick else 10000]):
    path = os.path.join(files['images'], str(index % 10), '{:05}.jpeg'.format(index))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.fromarray(image).save(path, quality=90)
  pattern = os.path.join(files['images'], '*', '*.jpeg')
  for flags in (
      ['--mode=train', '--model=fashion_cnn', '--dataset=image_folder', '--image_size=28,28',
       '--train_pattern=' + pattern, '--train_steps=20', '--model_dir=' + files['run']],
      ['--mode=write_tfrecords', '--dataset=image_folder', '--train_pattern=' + pattern,
       '--output=' + files['records'], '--num_shards=4']):
    common.run_python(['-m', 'estimator_train', *flags], 600)
  files['records'] = os.path.join(files['records'], 'train*')
  return files


def prediction(kind: str, build: str) -> Side:
  """Predicts 10,000 images, `images` or `records`, from the start to the last line of the file."""
  def run(conditions: Conditions) -> Figures:
    files = _prediction_files((conditions.data_dir, conditions.quick))
    with tempfile.TemporaryDirectory() as folder:
      output = os.path.join(folder, 'predictions')
      if build == 'keras3':
        child = _script('keras3_predict.py', [
            os.path.join(files['run'], 'model.h5'), files[kind], output], build, conditions)
      else:
        child = common.run_python(
            ['-m', 'estimator_train', '--mode=predict', '--model_dir=' + files['run'],
             '--input=' + files[kind], '--output=' + output], conditions.deadline_secs,
            conditions.pythons[build])
      with open(output) as file:
        lines = len(file.readlines())
    return {'total_secs': child.line_secs[-1], 'lines': lines, PEAK: child.peak_bytes / 1e6}
  return run


def accuracy(batch_size: int, scaling: str, warmup_epochs: int) -> Side:
  """Three epochs of Fashion-MNIST, with another seed each time."""
  seeds = itertools.count(1)

  def run(conditions: Conditions) -> Figures:
    workload = WORKLOADS['fashion_mnist']._replace(batch_size=batch_size)
    done = common.run_package(
        ['--train_epochs={}'.format(1 if conditions.quick else 3),
         '--scale_learning_rate=' + scaling, '--base_batch_size=128',
         '--lr_warmup_epochs={}'.format(warmup_epochs), '--seed={}'.format(next(seeds))]
        + workload.flags(conditions), conditions.deadline_secs)
    return {'accuracy': json.loads(done.child.lines[-1])['accuracy']}
  return run
