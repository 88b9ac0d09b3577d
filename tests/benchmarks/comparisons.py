"""The comparisons that tests/benchmarks/run.sh measures, by name.

A side is a process of its own. Its figures are seconds from just before it is spawned, images a
second once it is warm, and the peak of its memory in millions of bytes.
"""

import functools
import json
import os
import tempfile
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import common
from pairs import Comparison, Conditions, Figures, Ratio, Side

from estimator_train import onednn

FOLDER = os.path.dirname(os.path.abspath(__file__))
BATCH_SIZE = 256
RATE = 'images_per_sec'

# Of a frozen VGG16: what the article trains, in batches that small machines take.
FEATURES_BATCH_SIZE = 16
TRAINABLE_LAYERS = 4


def _script(name: str, arguments: Sequence[str], build: str,
            conditions: Conditions) -> common.Child:
  # What the program sets by itself, for scripts that only use its modules.
  threads = {name: os.environ.get(name, value) for name, value in onednn.THREADS.items()}
  return common.run_python(
      [os.path.join(FOLDER, name)] + list(arguments), conditions.deadline_secs,
      conditions.pythons[build], threads if build == 'onednn' else common.NOTHING)


def _figures(child: common.Child, names: Sequence[str]) -> Figures:
  told = json.loads(child.lines[-1])
  return {name: told[name] for name in names}


def _data(conditions: Conditions) -> List[str]:
  return ['--dataset=' + ('fashion_mnist_sample' if conditions.quick else 'fashion_mnist'),
          '--data_dir=' + conditions.data_dir]


def _steps(conditions: Conditions) -> Tuple[int, int]:
  """Returns the steps of a training and how many of them are its warm-up: within one epoch."""
  return (5, 2) if conditions.quick else (220, 20)


def _article(train_steps: int) -> Side:
  """The workflow of 2018: its start, its last step, its memory."""
  def run(conditions: Conditions) -> Figures:
    steps = 3 if conditions.quick else train_steps
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      child = _script('article_fashion_mnist.py', [
          '--data_dir=' + conditions.data_dir, '--model_dir=' + model_dir,
          '--train_steps={}'.format(steps), '--batch_size={}'.format(BATCH_SIZE)],
                      'stock', conditions)
    return {'first_step_secs': child.secs_until(common.ARTICLE_FIRST_STEP),
            'last_step_secs': child.secs_until(common.ARTICLE_LAST_STEP),
            'peak_mb': child.peak_bytes / 1e6}
  return run


def _package_run(build: str, train_steps: int, log_every_steps: int) -> Side:
  """The same by this package."""
  def run(conditions: Conditions) -> Figures:
    steps = 3 if conditions.quick else train_steps
    child, _ = common.run_package(
        ['--mode=train_and_evaluate', '--train_steps={}'.format(steps),
         '--batch_size={}'.format(BATCH_SIZE),
         '--log_every_steps={}'.format(min(log_every_steps, steps))] + _data(conditions),
        conditions.deadline_secs, python=conditions.pythons[build])
    found = {'last_step_secs': child.secs_until('step {0}/{0}'.format(steps)),
             'peak_mb': child.peak_bytes / 1e6}
    if log_every_steps == 1:
      found['first_step_secs'] = child.secs_until('step 1/')
    return found
  return run


def _steady(build: str, flags: Sequence[str] = (),
            variables: Mapping[str, str] = common.NOTHING) -> Side:
  """Training of `fashion_cnn` once it is warm."""
  def run(conditions: Conditions) -> Figures:
    steps, warmup = _steps(conditions)
    done = common.run_package(
        ['--mode=train', '--report_page=false', '--train_steps={}'.format(steps),
         '--batch_size={}'.format(BATCH_SIZE), '--throughput_warmup_steps={}'.format(warmup)] +
        _data(conditions) + list(flags), conditions.deadline_secs, python=conditions.pythons[build],
        variables=variables)
    return {RATE: done.throughput['examples_per_sec']}
  return run


def _pipeline(build: str) -> Side:
  """The input of that training by itself."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      child = common.run_python(
          ['-m', 'estimator_train', '--mode=input_benchmark', '--model_dir=' + model_dir,
           '--batch_size={}'.format(BATCH_SIZE)] + _data(conditions),
          conditions.deadline_secs, conditions.pythons[build])
    return {RATE: json.loads(child.lines[-1])['warm_images_per_sec']}
  return run


def _fashion_peer(script: str, build: str, option: str) -> Side:
  """The same training by others; the option says how their script does it."""
  def run(conditions: Conditions) -> Figures:
    steps, warmup = _steps(conditions)
    return _figures(_script(script, [
        '--data_dir=' + conditions.data_dir, option,
        '--train_steps={}'.format(steps), '--warmup_steps={}'.format(warmup),
        '--batch_size={}'.format(BATCH_SIZE)], build, conditions), [RATE])
  return run


_keras_fit = functools.partial(_fashion_peer, 'keras_fit.py', 'stock')
_torch = functools.partial(_fashion_peer, 'torch_fashion.py', 'torch')


def _torch_images(conditions: Conditions) -> Figures:
  assert conditions.train_pattern is not None
  return _figures(_script('torch_images.py', [
      '--train_pattern=' + conditions.train_pattern,
      '--image_size={},{}'.format(*_image_size(conditions))], 'torch', conditions), [RATE])


def _image_size(conditions: Conditions) -> Sequence[int]:
  return (32, 32) if conditions.quick else (224, 224)


def _measures(part: str, build: str, conditions: Conditions, **arguments: Any) -> Dict[str, Any]:
  data = {'train_pattern': conditions.train_pattern, 'image_size': _image_size(conditions),
          'shuffle_buffer': 2048}
  child = _script('image_input_measures.py', [part, json.dumps(dict(arguments, data=data))],
                  build, conditions)
  return json.loads(child.lines[-1])


def _images(part: str, **arguments: Any) -> Side:
  """A round of the input from image files: published, this package's, and its yardsticks."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
      more = dict(arguments, folder=folder) if part == 'cache' else arguments
      rates = _measures(part, 'stock', conditions, batch_size=32, rounds=1, **more)[RATE]
    return {name: values[0] for name, values in rates.items()}
  return run


def _vgg16(part: str, build: str, steps: int) -> Side:
  """Training steps of VGG16 whose last block trains, once its features are computed."""
  def run(conditions: Conditions) -> Figures:
    with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
      found = _measures(
          part, build, conditions, steps=2 if conditions.quick else steps,
          images=32 if conditions.quick else 128, batch_size=FEATURES_BATCH_SIZE, warmup_steps=2,
          trainable_layers=TRAINABLE_LAYERS, model_dir=model_dir)
    return {RATE: found[RATE]}
  return run


def _rates(title: str, over: str, under: Sequence[str], target: Any) -> Ratio:
  return Ratio(title, (over, RATE), tuple((side, RATE) for side in under), target)


def _limit(build: str) -> Comparison:
  return Comparison(
      'Share of the limit: fashion_cnn, batch 256, {}'.format(build),
      {'training': _steady(build), 'model alone': _steady(build, ['--dataset=synthetic']),
       'pipeline alone': _pipeline(build)},
      (_rates('of the model alone, on made-up images', 'training', ['model alone'], None),
       _rates('of what model and pipeline reach at best together, on the same cores', 'training',
              ['model alone', 'pipeline alone'], .95)),
      ('onednn',) if build == 'onednn' else ())


_ARTICLE_START = _article(100)
# Each is a change of what the program sets by itself.
_THREADS: Dict[str, Side] = {
    'as set': _steady('onednn'),
    'KMP_BLOCKTIME=1': _steady('onednn', variables={'KMP_BLOCKTIME': '1'}),
    'KMP_BLOCKTIME=200': _steady('onednn', variables={'KMP_BLOCKTIME': '200'}),
    'OMP_NUM_THREADS=1': _steady('onednn', variables={'OMP_NUM_THREADS': '1'}),
    'KMP_AFFINITY': _steady('onednn',
                            variables={'KMP_AFFINITY': 'granularity=fine,compact,1,0'}),
    'inter-op 1': _steady('onednn', flags=['--inter_op_parallelism_threads=1']),
    'intra-op 1': _steady('onednn', flags=['--intra_op_parallelism_threads=1']),
}


def _against(over: str, sides: Sequence[str]) -> List[Ratio]:
  return [_rates('{} / {}'.format(side, over), side, [over], None)
          for side in sides if side != over]


COMPARISONS: Dict[str, Comparison] = {
    'fashion_start': Comparison(
        'Start and memory: Fashion-MNIST, batch 256, 100 steps and an evaluation, stock build',
        {'article': _ARTICLE_START, 'package': _package_run('stock', 100, 1)},
        (Ratio('process start to first step: the article\'s script / package',
               ('article', 'first_step_secs'), (('package', 'first_step_secs'),), 8),
         Ratio('peak memory: the article\'s script / package', ('article', 'peak_mb'),
               (('package', 'peak_mb'),), 4))),
    'fashion_1000': Comparison(
        'Process start to the end of 1,000 steps: Fashion-MNIST, batch 256',
        {'article': _article(1000), 'stock': _package_run('stock', 1000, 100),
         'onednn': _package_run('onednn', 1000, 100)},
        (Ratio('the article\'s script / stock', ('article', 'last_step_secs'),
               (('stock', 'last_step_secs'),), 1.3),
         Ratio('the article\'s script / oneDNN', ('article', 'last_step_secs'),
               (('onednn', 'last_step_secs'),), 3)),
        ('onednn',)),
    'fashion_torch': Comparison(
        'Steady training: fashion_cnn, batch 256, PyTorch eager from memory',
        {'onednn': _steady('onednn'), 'torch nchw': _torch('--layout=nchw'),
         'torch nhwc': _torch('--layout=nhwc')},
        (_rates('oneDNN / PyTorch, NCHW', 'onednn', ['torch nchw'], 1.5),
         _rates('oneDNN / PyTorch, NHWC', 'onednn', ['torch nhwc'], 1.5)),
        ('onednn', 'torch')),
    'fashion_fit': Comparison(
        'Steady training: fashion_cnn, batch 256, `model.fit` of tf.keras 1.15, stock build',
        {'stock': _steady('stock'), 'arrays': _keras_fit('--input=arrays'),
         'tf.data': _keras_fit('--input=tf_data')},
        (_rates('stock / model.fit on arrays', 'stock', ['arrays'], 1.0),
         _rates('stock / model.fit on tf.data', 'stock', ['tf.data'], None))),
    'images_cold': Comparison(
        'Input from image files to 224x224, cold, batch 32',
        {'tensorflow': _images('cold'), 'torch': _torch_images},
        (Ratio('package / the article\'s input_fn', ('tensorflow', 'package'),
               (('tensorflow', 'published'),), 2.5),
         Ratio('package / decoding alone', ('tensorflow', 'package'),
               (('tensorflow', 'decoding'),), .8),
         Ratio('package / PyTorch\'s DataLoader and PIL, 2 workers', ('tensorflow', 'package'),
               (('torch', RATE),), 1.5)),
        ('torch', 'images')),
    'images_cached': Comparison(
        'The same from the second epoch on, the article\'s files in the page cache',
        {'tensorflow': _images('cache', window_secs=1)},
        tuple(Ratio('--cache={} / the article\'s input_fn'.format(value), ('tensorflow', figure),
                    (('tensorflow', 'published'),), 50)
              for figure, value in (('memory', 'memory'), ('folder', 'FOLDER'))),
        ('images',)),
    'vgg16_features': Comparison(
        'VGG16 at 224x224 whose last block trains, batch 16, from the second epoch on',
        {'stock': _vgg16('plain', 'stock', 4),
         'stock, features': _vgg16('features', 'stock', 10),
         'onednn': _vgg16('plain', 'onednn', 4),
         'onednn, features': _vgg16('features', 'onednn', 10)},
        (_rates('--cache_features / the whole network, stock', 'stock, features', ['stock'], 3.2),
         _rates('--cache_features / the whole network, oneDNN', 'onednn, features', ['onednn'],
                3.8)),
        ('onednn', 'images')),
    'limit_stock': _limit('stock'),
    'limit_onednn': _limit('onednn'),
    'onednn_threads': Comparison(
        'Settings of the build with oneDNN: fashion_cnn, batch 256', _THREADS,
        tuple(_against('as set', list(_THREADS))), ('onednn',)),
}
