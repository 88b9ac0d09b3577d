"""The runs whose graphs are checked."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from estimator_train.settings import workloads


class Configuration(NamedTuple):
  """A run on a host with GPUs.

  Attributes:
    name: the name in the table.
    num_gpus: the GPUs of each task; one replica on each, unless the flags limit their number.
    flags: the flags that differ from their defaults. The batch size is that of a replica.
    flagfile: the name of a flagfile of the package, whose flags apply first.
    run: `train`, `resume`, `evaluate`, `predict`, `export` or `convert`.
    cluster: the tasks of a cluster, as (job, number of tasks).
    task_index: the index of the task to check among those of the first job.
    is_default: whether the configuration is in the short list.
  """
  name: str
  num_gpus: int
  flags: Dict[str, Any]
  flagfile: Optional[str] = None
  run: str = 'train'
  cluster: Sequence[Tuple[str, int]] = ()
  task_index: int = 0
  is_default: bool = False


_SAMPLE = {'dataset': 'fashion_mnist_sample', 'model': 'fashion_cnn'}
_RESNET = {'dataset': 'synthetic', 'image_size': (224, 224, 3), 'model': 'resnet50',
           'weights': 'none', 'batch_size': 64, 'optimizer': 'momentum',
           'labels': tuple('class_{}'.format(index) for index in range(1000))}
# ResNet-50 of the publication. The model `resnet50` has a larger head, whose input is not pooled.
_IMAGENET = dict(_RESNET, model='examples.imagenet_resnet50:model')
_VGG = {'dataset': 'synthetic', 'image_size': (224, 224, 3), 'model': 'vgg16', 'weights': 'none',
        'batch_size': 32, 'trainable_layers': 4}
_RESIDUAL = {'dataset': 'synthetic', 'model': 'residual_cnn', 'optimizer': 'momentum'}
_PUBLISHED_BATCHES = {'fashion_mnist': 128, 'oct2017': 32, 'mnist_8gpu': 128, 'mnist_tf_data': 256,
                      'mnist_multi_worker_simple': 64, 'mnist_multi_worker_practical': 64}


def _replicas(flags, counts=(1, 2, 8), defaults=(), name=None, **more):
  """Yields a configuration for each number of GPUs."""
  for count in counts:
    yield Configuration('{}, {} GPU{}'.format(name or flags['model'], count, 's' * (count > 1)),
                        count, dict(flags, **more), is_default=count in defaults)


def _published_workloads():
  parts = {part.flagfile: part.num_gpus for workload in workloads.WORKLOADS.values()
           for part in workload.parts}
  for flagfile, num_gpus in parts.items():
    flags = {'batch_size': _PUBLISHED_BATCHES[flagfile], 'train_steps': 100, 'train_epochs': None}
    if flagfile == 'oct2017':
      flags['weights'] = 'none'
    cluster = (('worker', 2),) if 'multi_worker' in flagfile else ()
    for count in sorted({1, num_gpus}):
      yield Configuration('{}.flags, {} GPU{}'.format(flagfile, count, 's' * (count > 1)), count,
                          flags, flagfile, cluster=cluster, is_default=True)


def all_configurations():
  """Returns all configurations by name."""
  mixed = {'dtype': 'mixed'}
  found = [
      *_published_workloads(),
      *_replicas(_IMAGENET, name='ImageNet ResNet-50', defaults=(1, 2)),
      *_replicas(dict(_IMAGENET, **mixed), name='ImageNet ResNet-50 mixed', defaults=(1, 2)),
      *_replicas(_RESNET),
      *_replicas(dict(_RESNET, **mixed), name='resnet50 mixed'),
      *_replicas(_VGG, (1, 8)),
      *_replicas(dict(_VGG, **mixed), (1, 8), name='vgg16 mixed'),
      *_replicas(dict(_VGG, trainable_layers=18, batch_size=64), (1,),
                 name='vgg16, all layers trained'),
      *_replicas(_RESIDUAL),
      *_replicas(dict(_RESIDUAL, **mixed), name='residual_cnn mixed', defaults=(2,)),
      *_replicas({'dataset': 'gpu_graphs.models:text_data', 'model': 'gpu_graphs.models:lstm'},
                 (1, 2), name='LSTM', defaults=(2,)),
      *_replicas({'dataset': 'gpu_graphs.models:text_data', 'model': 'gpu_graphs.models:lstm',
                  **mixed}, (1,), name='LSTM mixed'),
      *_replicas({'dataset': 'gpu_graphs.models:text_data',
                  'model': 'gpu_graphs.models:masked_lstm'}, (1,), name='masked LSTM',
                 defaults=(1,)),
      *_replicas({'dataset': 'examples.csv_table:dataset', 'model': 'examples.csv_table:model',
                  'batch_size': 32}, (1, 2), name='table', defaults=(2,)),
      *_replicas({'dataset': 'examples.text:dataset', 'model': 'examples.text:model',
                  'batch_size': 64}, (2,), name='text'),
      *_replicas(_SAMPLE, (1,), name='off', distribution_strategy='off', defaults=(1,)),
      *_replicas(_SAMPLE, (1,), name='one_device', distribution_strategy='one_device'),
      *_replicas(_SAMPLE, (2, 8), name='central_storage', distribution_strategy='central_storage',
                 defaults=(2,)),
      *_replicas(_SAMPLE, (2, 8), name='hierarchical_copy', all_reduce_alg='hierarchical_copy',
                 defaults=(8,)),
      *_replicas(_SAMPLE, (2,), name='reduction_to_one_device',
                 all_reduce_alg='reduction_to_one_device'),
      *_replicas(_SAMPLE, (2,), name='4 packs', all_reduce_alg='nccl', num_packs=4),
      *_replicas(_SAMPLE, (2,), name='accumulation', gradient_accumulation_steps=2, defaults=(2,)),
      *_replicas(_SAMPLE, (2,), name='accumulation mixed', gradient_accumulation_steps=2, **mixed),
      *_replicas(_SAMPLE, (2,), name='EMA, clipping, mixup, augmentation', ema_decay=.99,
                 gradient_clip_norm=1., mixup_alpha=.2, augment='flip,pad_crop', defaults=(2,)),
      *_replicas(_SAMPLE, (1,), name='flip and pad_crop', augment='flip,pad_crop', defaults=(1,)),
      *_replicas(_SAMPLE, (2,), name='gradient clipping', gradient_clip_norm=1.),
      *_replicas(_SAMPLE, (2,), name='weight decay, smoothing, class weights', weight_decay=1e-4,
                 label_smoothing=.1, class_weights='balanced'),
      *_replicas(_SAMPLE, (2,), name='adamw', optimizer='adamw'),
      *_replicas(_SAMPLE, (2,), name='lars', optimizer='lars'),
      *_replicas(_SAMPLE, (2,), name='lamb', optimizer='lamb'),
      *_replicas(_SAMPLE, (2,), name='rmsprop', optimizer='rmsprop'),
      *_replicas({'dataset': 'gpu_graphs.models:small_images', 'model': 'vgg16', 'weights': 'none',
                  'trainable_layers': 4, 'batch_size': 32}, (2,), name='cache_features',
                 cache_features=True),
      Configuration('multi_worker_mirrored, 2 workers of 2 GPUs', 2, dict(
          _SAMPLE, distribution_strategy='multi_worker_mirrored'), cluster=(('worker', 2),),
                    is_default=True),
      Configuration('multi_worker_mirrored mixed, 2 workers of 2 GPUs', 2, dict(
          _SAMPLE, distribution_strategy='multi_worker_mirrored', **mixed),
                    cluster=(('worker', 2),)),
      Configuration('parameter_server, 2 workers of 1 GPU', 1, dict(
          _SAMPLE, distribution_strategy='parameter_server'),
                    cluster=(('chief', 1), ('worker', 1), ('ps', 1)), is_default=True),
      Configuration('horovod, 2 workers of 1 GPU', 1, dict(
          _SAMPLE, distribution_strategy='horovod'), cluster=(('worker', 2),), is_default=True),
      Configuration('horovod, second worker on a host of 2 GPUs', 2, dict(
          _SAMPLE, distribution_strategy='horovod', num_gpus=1), run='resume',
                    cluster=(('worker', 2),), task_index=1, is_default=True),
      Configuration('1 of 2 GPUs', 2, dict(_SAMPLE, num_gpus=1), is_default=True),
      Configuration('resumed, 2 GPUs', 2, _SAMPLE, run='resume'),
      Configuration('evaluation, 1 GPU', 1, _SAMPLE, run='evaluate', is_default=True),
      Configuration('evaluation of 8 GPUs', 8, _SAMPLE, run='evaluate'),
      Configuration('prediction, 1 GPU', 1, _SAMPLE, run='predict', is_default=True),
      Configuration('export, 1 GPU', 1, _SAMPLE, run='export', is_default=True),
      Configuration('convert, 1 GPU', 1, {}, run='convert'),
      Configuration('convert, 2 GPUs', 2, {}, run='convert', is_default=True),
  ]
  return {configuration.name: configuration for configuration in found}
