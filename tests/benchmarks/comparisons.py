"""The comparisons that tests/benchmarks/run.sh measures, by name."""

import itertools
from typing import Any, Dict, List, Sequence

import sides
from pairs import Comparison, Ratio, Side
from sides import PEAK, RATE


def _rates(title: str, over: str, under: Sequence[str], target: Any) -> Ratio:
  return Ratio(title, (over, RATE), tuple((side, RATE) for side in under), target)


def _limit(name: str, build: str) -> Comparison:
  workload = sides.WORKLOADS[name]
  return Comparison(
      'Fraction of the limit: {}, {}, batch {}, {} build'.format(
          name, workload.model, workload.batch_size, build),
      {'training': sides.training(workload, build), 'alone': sides.parts(workload, build)},
      (Ratio('training / the model alone, on synthetic images', ('training', RATE),
             (('alone', 'model'),), None),
       Ratio('training / what model and input reach at best together, on the same cores',
             ('training', RATE), (('alone', 'model'), ('alone', 'input')), .95)),
      (('onednn',) if build == 'onednn' else ()) + (('images',) if workload.from_images else ()))


def _training(name: str, torch_target: float, keras3_target: float,
              stock_too: bool = False) -> Comparison:
  """One network by all programs; a large one without the stock build, which takes twice as long."""
  workload = sides.TORCH_WORKLOADS[name]
  title = 'training rate of {}: {{}} / {{}}'.format(workload.model)
  compared = {'onednn': sides.training(workload, 'onednn'),
              'torch nchw': sides.torch(workload, '--layout=nchw'),
              'torch nhwc': sides.torch(workload, '--layout=nhwc'),
              'keras 3': sides.keras3(workload)}
  ratios = [_rates(title.format('oneDNN', 'PyTorch, the faster layout'), 'onednn',
                   ['torch nchw|torch nhwc'], torch_target),
            _rates(title.format('oneDNN', 'Keras 3'), 'onednn', ['keras 3'], keras3_target)]
  if stock_too:
    compared.update(stock=sides.training(workload, 'stock'), arrays=sides.keras_fit)
    ratios += [_rates(title.format('stock', 'Keras 3'), 'stock', ['keras 3'], None),
               _rates(title.format('stock', 'model.fit of TensorFlow 1.15 on arrays'), 'stock',
                      ['arrays'], 1.0)]
  return Comparison(
      'Steady training: {}; PyTorch eager on images in memory, `model.fit` of Keras 3 on '
      'TensorFlow 2{}'.format(_described(workload), ' and of tf.keras 1.15' if stock_too else ''),
      compared, tuple(ratios), ('onednn', 'torch', 'keras3'))


def _prediction(kind: str, title: str) -> Comparison:
  return Comparison(
      'Prediction of 10,000 {}, from process start to the end: fashion_cnn'.format(title),
      {'stock': sides.prediction(kind, 'stock'), 'onednn': sides.prediction(kind, 'onednn'),
       'keras 3': sides.prediction(kind, 'keras3')},
      tuple(Ratio('time to predict 10,000 {}: Keras 3 / {}'.format(
          title, name), ('keras 3', 'total_secs'), ((build, 'total_secs'),), target)
            for name, build, target in (('stock', 'stock', 1.2), ('oneDNN', 'onednn', None))),
      ('onednn', 'keras3'))


def _torch_compile(name: str) -> Comparison:
  # By itself, because torch.compile may fail: it needs a C++ compiler, and its code can crash.
  workload = sides.TORCH_WORKLOADS[name]
  return Comparison(
      'Steady training: {}, torch.compile on images in memory'.format(_described(workload)),
      {'onednn': sides.training(workload, 'onednn'),
       'torch compiled': sides.torch(workload, '--layout=nchw', '--compile')},
      (_rates('oneDNN / torch.compile, NCHW', 'onednn', ['torch compiled'], None),),
      ('onednn', 'torch'))


def _described(workload: sides.Workload) -> str:
  return '{}, batch {}, {}'.format(workload.model, workload.batch_size,
                                   ' '.join(workload.more) or 'all layers train')


def _changed(workload: str, build: str, variable: str) -> Side:
  name, value = variable.split('=', 1)
  return sides.training(sides.WORKLOADS[workload], build, variables={name: value})


# Each but the first of a workload is a change of what the program sets by itself.
_STOCK_VARIABLES: Dict[str, Side] = {
    'as set': sides.steady('stock'),
    # As many as glibc makes by itself on two cores; whoever sets it has malloc as it is.
    'MALLOC_ARENA_MAX=16': _changed('fashion_mnist', 'stock', 'MALLOC_ARENA_MAX=16'),
    'XLA': sides.steady('stock', flags=['--enable_xla']),
}
_ONEDNN_VARIABLES: Dict[str, Side] = {
    'as set': sides.steady('onednn'),
    **{variable: _changed('fashion_mnist', 'onednn', variable) for variable in (
        'KMP_BLOCKTIME=1', 'KMP_BLOCKTIME=200', 'OMP_NUM_THREADS=1',
        'KMP_AFFINITY=granularity=fine,compact,1,0', 'TF_CPU_ALLOCATOR_USE_BFC=1')},
    'inter-op 2': sides.steady('onednn', flags=['--inter_op_parallelism_threads=2']),
    'intra-op 1': sides.steady('onednn', flags=['--intra_op_parallelism_threads=1']),
    'XLA': sides.steady('onednn', flags=['--enable_xla']),
}
_MKL_VARIABLES: Dict[str, Side] = {
    'mnist_dense, as set': sides.training(sides.WORKLOADS['mnist_multi_worker_simple'], 'onednn'),
    'mnist_dense, MKL_DEBUG_CPU_TYPE=0': _changed('mnist_multi_worker_simple', 'onednn',
                                                  'MKL_DEBUG_CPU_TYPE=0'),
}


def _against(over: str, others: Sequence[str], figure: str = RATE) -> List[Ratio]:
  return [Ratio('{} / {}, {}'.format(side, over, figure), (side, figure), ((over, figure),), None)
          for side in others if side != over]


_GROWING_BATCH: Dict[str, Side] = {'batch 128, none': sides.accuracy(128, 'none', 0)}
for _batch_size, (_scaling, _warmup) in itertools.product((512, 2048), (
    ('none', 0), ('sqrt', 0), ('sqrt', 1), ('linear', 0), ('linear', 1))):
  _GROWING_BATCH['batch {}, {}{}'.format(
      _batch_size, _scaling, ', warm-up 1' if _warmup else '')] = sides.accuracy(
          _batch_size, _scaling, _warmup)

_ARTICLE = 'the article\'s script'
_SIDES = {_ARTICLE: 'article', 'stock': 'stock', 'oneDNN': 'onednn', 'Keras 3': 'keras 3'}
_FIRST_STEP = 'process start to first step'
_LAST_STEP = 'process start to the end of 1,000 steps'

COMPARISONS: Dict[str, Comparison] = {
    'start': Comparison(
        'Start and memory: Fashion-MNIST, batch 256, 1,000 steps; Keras 3 without an evaluation, a '
        'checkpoint and an export',
        {'article': sides.article(1000), 'stock': sides.package_run('stock', 1000),
         'onednn': sides.package_run('onednn', 1000), 'keras 3': sides.keras3_start(1000)},
        tuple(Ratio('{}: {} / {}'.format(title, over, under), (_SIDES[over], figure),
                    ((_SIDES[under], figure),), target) for title, figure, over, under, target in (
            (_FIRST_STEP, 'first_step_secs', _ARTICLE, 'stock', 20),
            (_FIRST_STEP, 'first_step_secs', 'Keras 3', 'stock', 2.4),
            (_LAST_STEP, 'last_step_secs', _ARTICLE, 'stock', 1.3),
            (_LAST_STEP, 'last_step_secs', _ARTICLE, 'oneDNN', 3),
            (_LAST_STEP, 'last_step_secs', 'Keras 3', 'oneDNN', 1.45),
            ('peak memory', PEAK, _ARTICLE, 'stock', 4),
            ('peak memory', PEAK, 'Keras 3', 'stock', 2))),
        ('onednn', 'keras3')),
    'fashion': _training('fashion', 1.3, 1.25, stock_too=True),
    'vgg16': _training('vgg16', 1.1, 1.08),
    'resnet50': _training('resnet50', 1.2, 1.6),
    'pauses': Comparison(
        'Pauses during training: fashion_cnn, the first and later evaluations on 10,000 images, '
        'and later checkpoints; `fit` of Keras 3 with validation_data and ModelCheckpoint',
        {'stock': sides.pauses('stock'), 'onednn': sides.pauses('onednn'),
         'keras 3': sides.pauses('keras3')},
        tuple(Ratio('pause for {}: Keras 3 / {}'.format(title, under), ('keras 3', figure),
                    ((_SIDES[under], figure),), None)
              for figure, title in zip(sides.PAUSES, (
                  'the first evaluation', 'a later evaluation', 'a checkpoint'))
              for under in ('stock', 'oneDNN')),
        ('onednn', 'keras3')),
    'predict_images': _prediction('images', 'JPEG files'),
    'predict_records': _prediction('records', 'JPEGs in TFRecord files'),
    'padded_gradient': Comparison(
        'Padded images for the gradient of the first layer: fashion_cnn, batch 256, which makes a '
        'difference on AVX2 without AVX-512 (--avx2)',
        {'padded': sides.steady('onednn'),
         'unpadded': sides.unpadded(sides.WORKLOADS['fashion_mnist'], 'onednn')},
        (_rates('padded / unpadded', 'padded', ['unpadded'], None),), ('onednn',)),
    'fashion_input': Comparison(
        'Whether the input keeps up with the model: Fashion-MNIST and synthetic images, batch 256',
        {'real': sides.steady('stock'),
         'synthetic': sides.steady('stock', flags=['--dataset=synthetic', '--image_size=28,28'])},
        (_rates('training rate of fashion_cnn: real / synthetic images', 'real',
                ['synthetic'], .95),)),
    'two_workers': Comparison(
        'What a second worker brings: fashion_cnn, 128 images a step on each core',
        {'one': sides.workers(1), 'two': sides.workers(2)},
        (_rates('training rate of fashion_cnn: two workers / one', 'two', ['one'], 1.6),
         Ratio('two workers / one, a step', ('two', 'p50_step_ms'), (('one', 'p50_step_ms'),),
               None))),
    'growing_batch': Comparison(
        'What a growing batch costs in accuracy, and what a scaled learning rate brings back: '
        'three epochs of Fashion-MNIST, --scale_learning_rate and --lr_warmup_epochs',
        _GROWING_BATCH, tuple(_against('batch 128, none', list(_GROWING_BATCH), 'accuracy'))),
    'images_cold': Comparison(
        'Input from image files to 224x224, cold, batch 32',
        {'tensorflow': sides.images('cold'), 'torch': sides.torch_images},
        (Ratio('input rate, cold files: package / the article\'s input_fn',
               ('tensorflow', 'package_per_sec'), (('tensorflow', 'published_per_sec'),), 2.5),
         Ratio('input rate, cold files: package / decoding alone',
               ('tensorflow', 'package_per_sec'), (('tensorflow', 'decoding_per_sec'),), .8),
         Ratio('input rate, cold files: package / PyTorch\'s DataLoader and PIL, 2 workers',
               ('tensorflow', 'package_per_sec'), (('torch', RATE),), 1.5)),
        ('torch', 'images')),
    'images_from_memory': Comparison(
        'The same, of the same images from memory: decoded at full scale and resized, as many '
        'threads',
        {'tensorflow': sides.images('cold')},
        (Ratio('input rate: cold files / decoding and resizing the same images from memory',
               ('tensorflow', 'package_per_sec'), (('tensorflow', 'from_memory_per_sec'),), .95),),
        ('images',)),
    'images_fill': Comparison(
        'The whole first epoch over cold image files, filling the cache included, batch 32',
        {'tensorflow': sides.images('fill', passes=5)},
        tuple(Ratio('input rate, first epoch: --cache={} / --cache=none'.format(value),
                    ('tensorflow', figure + '_per_sec'), (('tensorflow', 'none_per_sec'),), .95)
              for figure, value in (('memory', 'memory'), ('folder', 'FOLDER'))),
        ('images',)),
    'images_cached': Comparison(
        'The same from the second epoch on, the article\'s files in the page cache',
        {'tensorflow': sides.images('cache', window_secs=1)},
        tuple(Ratio('input rate, later epochs: --cache={} / the article\'s input_fn'.format(value),
                    ('tensorflow', figure + '_per_sec'), (('tensorflow', 'published_per_sec'),), 50)
              for figure, value in (('memory', 'memory'), ('folder', 'FOLDER'))),
        ('images',)),
    'vgg16_features': Comparison(
        'VGG16 at 224x224 whose last block trains, batch 16, from the second epoch on',
        {'onednn': sides.vgg16('plain', 'onednn', 4),
         'onednn, features': sides.vgg16('features', 'onednn', 10)},
        (_rates('training rate of VGG16: --cache_features / the whole network, oneDNN',
                'onednn, features', ['onednn'], 3.8),
         Ratio('computing the features / the whole network, oneDNN',
               ('onednn, features', 'computed_per_sec'), (('onednn', RATE),), None)),
        ('onednn', 'images')),
    'variables_stock': Comparison(
        'What the program sets for the stock build: fashion_cnn, batch 256', _STOCK_VARIABLES,
        tuple(_against('as set', list(_STOCK_VARIABLES))
              + _against('as set', list(_STOCK_VARIABLES), PEAK))),
    'variables_onednn': Comparison(
        'What it sets for the build with oneDNN: fashion_cnn, batch 256, and mnist_dense, batch 64',
        {**_ONEDNN_VARIABLES, **_MKL_VARIABLES},
        tuple(_against('as set', list(_ONEDNN_VARIABLES))
              + _against('mnist_dense, as set', list(_MKL_VARIABLES))), ('onednn',)),
}
COMPARISONS.update(('limit_{}_{}'.format(name, build), _limit(name, build))
                   for name in sides.WORKLOADS for build in ('stock', 'onednn'))
COMPARISONS.update((name + '_torch_compile', _torch_compile(name))
                   for name in sides.TORCH_WORKLOADS)
