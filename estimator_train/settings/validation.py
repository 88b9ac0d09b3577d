"""What a flag's value may be, by itself and beside the others'."""

from typing import Any, Iterable, Sequence, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.settings import choices, experiment_checks, learning_rate_checks, user_code

_IN_WORDS = {str: 'a text', int: 'a whole number', float: 'a number', bool: 'True or False',
             type(None): 'None'}
# Viewers of traces choke on more.
MAX_TRACED_STEPS = 1000
# Of numbers of which each costs a thread, a device or a batch in memory; others go up to 2**31 - 1.
_AT_MOST = dict.fromkeys(('num_cpu_replicas', 'num_parallel_calls', 'prefetch',
                          'inter_op_parallelism_threads', 'intra_op_parallelism_threads'), 1000)
# Data sets for which a flag says something; with others the run would not be what it looks like.
_ONLY_FOR = (('train_pattern', ('image_folder',)), ('eval_pattern', ('image_folder',)),
             ('labels', ('image_folder', 'synthetic')),
             ('image_size', ('image_folder', 'oct2017', 'synthetic')))


def check(settings: Any) -> None:
  """Raises a UserError that says what is wrong where the Settings are made of what cannot be."""
  _check_types(settings)
  _check_choices(settings)
  _check_texts(settings)
  _check_bounds(settings)
  learning_rate_checks.check(settings)
  _check_places(settings)
  _check_length(settings)
  _check_devices(settings)
  _check_checkpoints(settings)
  _check_stopping(settings)
  if settings.mode == 'scaling':
    experiment_checks.check_scaling(settings)
  if settings.mode == 'reproduce':
    experiment_checks.check_reproduce(settings)


def _check_types(settings: Any) -> None:
  """The command line gives the right ones; Python code may not."""
  for name, annotation in type(settings)._field_types.items():
    is_union = getattr(annotation, '__origin__', None) is Union
    kinds = annotation.__args__ if is_union else (annotation,)
    value = getattr(settings, name)
    if not any(_is_of(value, kind) for kind in kinds):
      raise UserError('{} is of the wrong type'.format(name), '{}={!r}'.format(name, value),
                      'give ' + ' or '.join(_IN_WORDS.get(kind, 'a tuple') for kind in kinds))


def _is_of(value: Any, kind: Any) -> bool:
  if kind is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  return type(value) is kind if kind in _IN_WORDS else isinstance(value, tuple)


def _check_choices(settings: Any) -> None:
  for name, words in choices.OF_FLAG.items():
    value = getattr(settings, name)
    if value is not None:
      check_choice(name, value, words)


def check_choice(name: str, value: str, words: Sequence[str]) -> None:
  """Raises a UserError when the flag's value is none of the words."""
  if value not in words:
    raise UserError('--{} has no such choice'.format(name), '--{}={}'.format(name, value),
                    'choose from ' + ', '.join(words))


def _check_texts(settings: Any) -> None:
  """Raises a UserError for a text that a flagfile could not give again, or no file can have."""
  for name, value in zip(settings._fields, settings):
    for text in value if isinstance(value, tuple) else (value,):
      if not isinstance(text, str):
        continue
      given = '--{}={!r}'.format(name, text)
      if '\0' in text or text.splitlines() not in ([], [text]):
        raise UserError('--{} has a line break or a null character'.format(name), given,
                        'give one without')
      if text != text.strip():
        raise UserError('--{} begins or ends with a blank'.format(name), given,
                        'give one without')
      if any('\ud800' <= character <= '\udfff' for character in text):
        raise UserError('--{} is not UTF-8'.format(name), given,
                        'give one that is, in a locale such as LANG=C.UTF-8; * stands for any name')


def _check_bounds(settings: Any) -> None:
  at_least: Iterable[Tuple[int, Sequence[str]]] = (
      (1, ('train_steps', 'train_epochs', 'eval_every_steps', 'early_stopping_steps', 'batch_size',
           'base_batch_size', 'num_packs', 'shuffle_buffer', 'prefetch', 'log_every_steps',
           'save_checkpoints_steps', 'save_checkpoints_secs', 'keep_checkpoint_max', 'repeats',
           'peer_timeout_secs', 'start_timeout_secs')),
      (0, ('seed', 'num_cpu_replicas', 'num_parallel_calls', 'trainable_layers',
           'throughput_warmup_steps', 'step_timeout_secs', 'save_retry_secs',
           'inter_op_parallelism_threads', 'intra_op_parallelism_threads')),
      (-1, ('num_gpus',)))
  for bound, names in at_least:
    for name in names:
      value = getattr(settings, name)
      last = _AT_MOST.get(name, 2 ** 31 - 1)
      if value is not None and not bound <= value <= last:
        raise UserError('--{} is out of range'.format(name), '--{}={}'.format(name, value),
                        'give a whole number from {} to {}'.format(bound, last))
  if settings.stop_at_accuracy is not None and not 0 < settings.stop_at_accuracy <= 1:
    raise UserError('--stop_at_accuracy is a share of the test examples, above 0 and up to 1',
                    '--stop_at_accuracy={}'.format(settings.stop_at_accuracy),
                    'give one such as 0.9')
  if not 0 <= settings.max_bad_images <= 1:  # Nor does nan lie there.
    raise UserError('--max_bad_images is a share of all images, from 0 to 1',
                    '--max_bad_images={}'.format(settings.max_bad_images),
                    'give one such as 0.01')
  size = settings.image_size
  lengths = (2, 3) if settings.dataset == 'synthetic' else (2,)
  if size is not None and (len(size) not in lengths
                           or not all(0 < side < 2 ** 15 for side in size)):
    raise UserError('--image_size must be height,width in pixels',
                    '--image_size=' + ','.join(str(side) for side in size),
                    'give one such as 28,28')
  if settings.trace_steps is not None:
    first, last = settings.trace_steps
    if not 1 <= first <= last < first + MAX_TRACED_STEPS:
      raise UserError(
          '--trace_steps must be first:last, from 1 on and no more than {} steps'.format(
              MAX_TRACED_STEPS),
          '--trace_steps={}:{}'.format(first, last), 'give one such as 101:110')
  if len(set(settings.labels)) < len(settings.labels) or not all(settings.labels):
    raise UserError('--labels must be different names',
                    '--labels=' + ','.join(settings.labels), 'name each class once')


def _check_places(settings: Any) -> None:
  if not settings.weights:
    raise UserError('--weights is empty', '--weights=', 'give none, or the path of a file')
  if not settings.cache:
    raise UserError('--cache is empty', '--cache=',
                    'give {}, or a folder'.format(', '.join(choices.CACHES)))
  if not settings.output:
    raise UserError('--output is empty', '--output=',
                    'give a file, or - for standard output')
  if settings.mode == 'predict' and not settings.input:
    raise UserError('what to predict is not said', '--mode=predict without --input',
                    'give --input=PATTERN, such as \'DATA/**/*.jpeg\', in quotes')
  if not settings.checkpoint:
    raise UserError('--checkpoint is empty', '--checkpoint=', 'give latest, best, or a path')
  if settings.mode not in choices.WITHOUT_MODEL_DIR and not settings.model_dir:
    raise UserError('--model_dir is required, everything the run makes is kept there',
                    '--mode={} without --model_dir'.format(settings.mode),
                    'give --model_dir=FOLDER')
  if settings.mode == 'export' and not settings.export_dir:
    raise UserError('where to export to is not said', '--mode=export without --export_dir',
                    'give --export_dir=FOLDER')
  for name, datasets in _ONLY_FOR:
    if getattr(settings, name) and settings.dataset not in datasets and (
        not user_code.is_own(settings.dataset)):
      raise UserError('--{} is for --dataset={}'.format(name, ' or '.join(datasets)),
                      '--{} and --dataset={}'.format(name, settings.dataset),
                      'give that, or leave --{} out'.format(name))


def _check_length(settings: Any) -> None:
  if not settings.trains:
    return
  if settings.train_steps is not None and settings.train_epochs is not None:
    raise UserError('--train_steps and --train_epochs both say how long to train',
                    '--train_steps={} --train_epochs={}'.format(
                        settings.train_steps, settings.train_epochs),
                    'give one of them')
  if settings.train_steps is None and settings.train_epochs is None:
    raise UserError('how long to train is not said', '--mode={}'.format(settings.mode),
                    'give --train_steps=N or --train_epochs=N')
  if settings.trace_steps and settings.train_steps and (
      settings.trace_steps[0] > settings.train_steps):
    raise UserError('--trace_steps begins after the last step', '--trace_steps={}:{} '
                    '--train_steps={}'.format(*settings.trace_steps, settings.train_steps),
                    'give earlier steps')


def _check_devices(settings: Any) -> None:
  if settings.num_cpu_replicas and settings.num_gpus > 0:
    raise UserError('a run is on GPUs or on CPU replicas, not on both',
                    '--num_gpus={} --num_cpu_replicas={}'.format(
                        settings.num_gpus, settings.num_cpu_replicas),
                    'give one of them')
  over_workers = settings.distribution_strategy == 'multi_worker_mirrored'
  if settings.all_reduce_alg in (choices.IN_ONE_MACHINE if over_workers else choices.OVER_WORKERS):
    raise UserError(
        '--all_reduce_alg={} is not for --distribution_strategy={}'.format(
            settings.all_reduce_alg, settings.distribution_strategy),
        '--all_reduce_alg={}'.format(settings.all_reduce_alg),
        'choose from ' + ', '.join(name for name in choices.ALL_REDUCE_ALGORITHMS if name not in (
            choices.IN_ONE_MACHINE if over_workers else choices.OVER_WORKERS)))
  if settings.enable_xla and settings.num_cpu_replicas > 1 and settings.trains and (
      settings.distribution_strategy in ('mirrored', 'multi_worker_mirrored')):
    raise UserError('XLA of TensorFlow 1.15 does not get variables mirrored over logical CPU '
                    'devices initialized', '--enable_xla --num_cpu_replicas={}'.format(
                        settings.num_cpu_replicas), 'leave one of them out')
  if settings.on_nan == 'skip' and settings.dtype != 'mixed':
    raise UserError('it is dynamic loss scaling that leaves out a step that is not finite',
                    '--on_nan=skip --dtype={}'.format(settings.dtype),
                    'give --dtype=mixed, or leave --on_nan out')
  if settings.distribution_strategy in choices.SINGLE_REPLICA_STRATEGIES:
    for name in ('num_gpus', 'num_cpu_replicas'):
      if getattr(settings, name) > 1:
        raise UserError(
            '--distribution_strategy={} has one replica'.format(settings.distribution_strategy),
            '--{}={}'.format(name, getattr(settings, name)),
            'give --distribution_strategy=mirrored, or leave --{} out'.format(name))


def _check_checkpoints(settings: Any) -> None:
  steps, secs = settings.save_checkpoints_steps, settings.save_checkpoints_secs
  every = settings.eval_every_steps
  if steps is not None and secs is not None:
    raise UserError('checkpoints are saved by steps or by seconds, not by both',
                    '--save_checkpoints_steps={} --save_checkpoints_secs={}'.format(steps, secs),
                    'give one of them')
  if every is not None and secs is not None:
    raise UserError('an evaluation is of a checkpoint, and --eval_every_steps counts steps',
                    '--eval_every_steps={} --save_checkpoints_secs={}'.format(every, secs),
                    'leave --save_checkpoints_secs out')
  if every is not None and steps is not None and every % steps:
    raise UserError('an evaluation is of a checkpoint, so --eval_every_steps must be a multiple '
                    'of --save_checkpoints_steps',
                    '--eval_every_steps={} --save_checkpoints_steps={}'.format(every, steps),
                    'give --save_checkpoints_steps={}, or leave it out'.format(every))
  if settings.checkpoint != 'latest' and settings.mode not in choices.READS_CHECKPOINT:
    raise UserError('--checkpoint is for --mode=' + ', '.join(choices.READS_CHECKPOINT),
                    '--checkpoint={} --mode={}'.format(settings.checkpoint, settings.mode),
                    'leave it out; training goes on from the latest' if settings.trains
                    else 'leave it out')


def _check_stopping(settings: Any) -> None:
  steps, every = settings.early_stopping_steps, settings.eval_every_steps
  given = ['--{}={}'.format(name, getattr(settings, name))
           for name in ('early_stopping_steps', 'stop_at_accuracy')
           if getattr(settings, name) is not None]
  if not given or not settings.trains:
    return
  if settings.mode != 'train_and_evaluate':
    raise UserError('it is evaluations that say when to stop',
                    '{} --mode={}'.format(' '.join(given), settings.mode),
                    'give --mode=train_and_evaluate')
  if every is None:
    raise UserError('it is evaluations that say when to stop, and there is none before the end',
                    ' '.join(given), 'give --eval_every_steps=N')
  if steps is not None and steps < every:
    raise UserError('--early_stopping_steps cannot be seen between two evaluations',
                    '--early_stopping_steps={} --eval_every_steps={}'.format(steps, every),
                    'give --early_stopping_steps={} or more'.format(every))
