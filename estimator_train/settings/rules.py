"""The table of the rules between flags.

The constructor of Settings checks the rules that hold in all modes. `Settings.for_mode` checks the
rules that hold only in some modes.
"""

import contextlib
import functools
import glob
import importlib.util
import logging
import math
import os
from types import SimpleNamespace
from typing import Any, Callable, Container, Dict, NamedTuple, Optional, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.settings import data_folder, flags
from estimator_train.settings.flag_type import all_flags
from estimator_train.settings.workloads import WORKLOADS

_LOG = logging.getLogger('estimator_train')
_TRAINING = flags.TRAINING_MODES
# Pairs of flags that exclude each other. A flag on the command line overrides the other flag of the
# pair in a flagfile.
EXCLUSIVE_PAIRS = (('train_steps', 'train_epochs'),
                   ('save_checkpoints_steps', 'save_checkpoints_secs'),
                   ('eval_pattern', 'validation_fraction'),
                   ('eval_every_epochs', 'eval_every_steps'),
                   ('early_stopping_epochs', 'early_stopping_steps'))
_ONNX_PACKAGES = ('tf2onnx', 'onnx', 'onnxruntime')
# These flags do not change the published workload, so --mode=reproduce accepts them.
_REPRODUCE_FLAGS = (
    'mode', 'workload', 'data_dir', 'model_dir', 'weights', 'num_gpus', 'num_cpu_replicas',
    'all_reduce_alg', 'num_packs', 'gpu_memory_growth', 'inter_op_parallelism_threads',
    'intra_op_parallelism_threads', 'num_parallel_calls', 'seed', 'log_every_steps',
    'save_checkpoints_secs', 'save_retry_secs', 'report_page', *flags.OUTPUT_FLAGS)

# These flags have an effect only in the modes that train, and in those that propose a command to
# train with the given flags.
_FLAGS_OF_TRAINING = (
    'train_steps', 'train_epochs', 'eval_every_epochs', 'eval_every_steps', 'early_stopping_epochs',
    'early_stopping_steps', 'stop_at_accuracy', 'learning_rate', 'scale_learning_rate',
    'base_batch_size', 'lr_schedule', 'lr_boundaries_epochs', 'lr_values', 'lr_warmup_epochs',
    'backbone_lr_factor', 'gradient_clip_norm', 'augment', 'mixup_alpha', 'shuffle_buffer',
    'save_checkpoints_steps', 'save_checkpoints_secs', 'save_retry_secs',
    'throughput_warmup_steps', 'trace_steps', 'hooks')
# The modes in which a flag has an effect, if the other modes ignore it. --mode=evaluate has its own
# warning about --input.
_MODES_WITH_EFFECT = {
    **dict.fromkeys(_FLAGS_OF_TRAINING, tuple(mode for mode in flags.MODES if mode not in (
        *flags.MODES_WITH_CHECKPOINT_FLAG, 'report', 'doctor'))),
    'input': ('predict', 'evaluate'), 'output': ('predict', 'write_tfrecords'),
    'repeats': ('scaling',), 'scale_over': ('scaling',), 'workload': ('reproduce',)}
# The modes to which a flag applies, if the other modes reject it.
ONLY_IN_MODES = {'num_shards': ('write_tfrecords',), 'runs': ('report',),
                 'checkpoint': flags.MODES_WITH_CHECKPOINT_FLAG}


class Rule(NamedTuple):
  """A row of the table.

  In the three parts of the error, `text`, `given` and `remedy`, `{s.FLAG}` stands for the value of
  a flag.

  Attributes:
    given: the names of the flags whose values the error states, or a text that begins with `--`.
    remedy: a text, or a function that returns it for the values of all flags.
    is_broken: takes an object with the values of all flags as attributes.
    modes: the modes in which the rule holds; empty for all modes.
  """
  text: str
  given: str
  remedy: Union[str, Callable[[Any], str]]
  is_broken: Callable[[Any], Any]
  modes: Tuple[str, ...] = ()

  def check(self, settings: Any) -> None:
    if self.is_broken(settings):
      given = (self.given.format(s=settings) if self.given.startswith('--')
               else _format_flags(settings, *self.given.split()))
      remedy = (self.remedy.format(s=settings) if isinstance(self.remedy, str)
                else self.remedy(settings))
      raise UserError(self.text.format(s=settings), given, remedy)


def check_rules(settings: Any, mode: str = '') -> None:
  """Checks the rules that hold in all modes or, if a mode is given, those that hold only in it."""
  values = SimpleNamespace(**dict(settings.items()))
  for rule in RULES:
    if mode in rule.modes if mode else not rule.modes:
      rule.check(values)


def warn_of_flags_without_effect(mode: str, given: Container[str]) -> None:
  """Logs a warning if the mode ignores flags that the user has given.

  Args:
    given: the names of the flags on the command line or in the call. Those in a flagfile may be
      meant for other modes.
  """
  names = ['--' + name for name, modes in _MODES_WITH_EFFECT.items()
           if name in given and mode not in modes]
  if names:
    _LOG.warning('%s %s no effect in --mode=%s', ', '.join(names),
                 'has' if len(names) == 1 else 'have', mode)


def unset_excluded_flags(values: Dict[str, Any], given: Container[str]) -> None:
  """Sets each flag to None that a given flag excludes, unless it is given, too."""
  for pair in EXCLUSIVE_PAIRS:
    others = [name for name in pair if name not in given]
    if len(others) == 1:
      values.update(dict.fromkeys(others))


def _exclude_each_other(first: str, second: str) -> Rule:
  return Rule('--{} and --{} exclude each other'.format(first, second), first + ' ' + second,
              'give one of them', lambda s: None not in (getattr(s, first), getattr(s, second)))


def _required_in_mode(name: str, mode: str, remedy: str) -> Rule:
  return Rule('--mode={} requires --{}'.format(mode, name),
              '--mode={} without --{}'.format(mode, name), remedy,
              lambda s: getattr(s, name) in (None, (), '', '-'), (mode,))


def _only_in_modes(name: str, remedy: str) -> Rule:
  modes = ONLY_IN_MODES[name]
  return Rule('--{} is only for --mode={}'.format(name, ', '.join(modes)), name + ' mode', remedy,
              lambda s: getattr(s, name) != all_flags()[name].default,
              tuple(mode for mode in flags.MODES if mode not in modes))


def _must_have_default(name: str) -> Rule:
  return Rule('--mode=reproduce runs a workload with its published flags', name,
              'omit it, or run the flagfile without --mode=reproduce',
              lambda s: getattr(s, name) != all_flags()[name].default, ('reproduce',))


def _only_for_data_sets(name: str, *data_sets: str) -> Rule:
  """Returns the rule about a flag that other built-in data sets ignore."""
  return Rule('--{} is only for --dataset={}'.format(name, ' or '.join(data_sets)),
              '--{} and --dataset={{s.dataset}}'.format(name),
              'change --dataset, or omit --' + name,
              lambda s: (getattr(s, name) != all_flags()[name].default and _has_built_in_dataset(s)
                         and s.dataset not in data_sets))


def _unsupported_with(name: str, default: Any, other: str, is_given: Callable[[Any], bool]) -> Rule:
  return Rule('--{0}={{s.{0}}} does not support {1}'.format(name, other),
              '--{0}={{s.{0}}} with {1}'.format(name, other),
              'give --{}={}, or omit {}'.format(name, default, other),
              lambda s: getattr(s, name) != default and is_given(s))


def _propose_model_dir(settings: Any) -> str:
  """Returns a remedy that names the newest run, for modes that read a run."""
  newest = _find_newest_run()
  if settings.mode == 'report':
    runs = settings.runs or tuple(filter(None, [newest]))
    if len(runs) == 1:
      return 'give {1}--model_dir={0} to write the page to this run, or --model_dir=FOLDER'.format(
          runs[0], '' if settings.runs else '--runs={} '.format(newest))
  elif settings.mode in flags.MODES_WITH_CHECKPOINT_FLAG and newest is not None:
    return 'give --model_dir={}, the newest run in {}/, or --model_dir=FOLDER'.format(
        newest, flags.RUNS_FOLDER)
  return 'give --model_dir=FOLDER'


def _find_newest_run() -> Optional[str]:
  """Returns the folder of the run in `runs/` that has saved the last checkpoint, or None."""
  saves = {}
  for path in glob.glob(os.path.join(flags.RUNS_FOLDER, '*', 'checkpoint')):
    with contextlib.suppress(OSError):  # It may be removed meanwhile.
      saves[os.path.getmtime(path)] = os.path.dirname(path)
  return saves[max(saves)] if saves else None


def _has_built_in_dataset(settings: Any) -> bool:
  return settings.dataset in flags.DATASETS


def _has_decay_schedule(settings: Any) -> bool:
  return settings.lr_schedule in ('exponential', 'cosine')


def _stops_before_evaluation(settings: Any, unit: str) -> bool:
  stopping, interval = (getattr(settings, name + unit)
                        for name in ('early_stopping_', 'eval_every_'))
  return bool(stopping and interval and interval > stopping)


def _may_stop_early(settings: Any) -> bool:
  return any(getattr(settings, name) is not None for name in _STOPPING_FLAGS.split())


_STOPPING_FLAGS = 'early_stopping_epochs early_stopping_steps stop_at_accuracy'
# The table has this rule only for built-in data sets and folders. For the data set of a function,
# --mode=predict checks the rule, because --input is required only if the examples are images.
INPUT_RULE = _required_in_mode('input', 'predict',
                               'give --input=PATTERN, such as \'DATA/**/*.jpeg\', in quotes')
# For a folder, this rule is checked when its files are found.
PIPELINE_OF_RECORDS_RULE = _unsupported_with(
    'input_pipeline', 'exact', '--validation_fraction of TFRecord files',
    lambda s: s.validation_fraction)

RULES = (
    # In all modes.
    *(_exclude_each_other(*pair) for pair in EXCLUSIVE_PAIRS),
    Rule('a run uses GPUs or CPU replicas, not both', 'num_gpus num_cpu_replicas',
         'give one of them', lambda s: s.num_cpu_replicas and s.num_gpus > 0),
    Rule('Horovod chooses its own all-reduce algorithm', 'distribution_strategy all_reduce_alg',
         'omit --all_reduce_alg; environment variables HOROVOD_* configure Horovod',
         lambda s: s.distribution_strategy == 'horovod' and s.all_reduce_alg),
    Rule('--distribution_strategy={s.distribution_strategy} has one replica in each process',
         'num_gpus num_cpu_replicas', 'omit them, or give --distribution_strategy=mirrored',
         lambda s: (s.distribution_strategy in flags.SINGLE_REPLICA_STRATEGIES
                    and max(s.num_gpus, s.num_cpu_replicas) > 1)),
    Rule('--all_reduce_alg={s.all_reduce_alg} is for a single machine', 'distribution_strategy',
         'give --all_reduce_alg=nccl or ring',
         lambda s: (s.distribution_strategy == 'multi_worker_mirrored'
                    and s.all_reduce_alg in flags.SINGLE_HOST_ALL_REDUCE)),
    Rule('--all_reduce_alg={s.all_reduce_alg} is for --distribution_strategy=multi_worker_mirrored',
         'distribution_strategy',
         'give --all_reduce_alg=nccl, hierarchical_copy or reduction_to_one_device',
         lambda s: (s.distribution_strategy != 'multi_worker_mirrored'
                    and s.all_reduce_alg in flags.MULTI_WORKER_ALL_REDUCE)),
    Rule('--on_nan=skip requires dynamic loss scaling, which skips updates that are not finite',
         'on_nan dtype', 'give --dtype=mixed, or omit --on_nan',
         lambda s: s.on_nan == 'skip' and s.dtype != 'mixed'),
    _unsupported_with('input_pipeline', 'exact', '--cache',
                      lambda s: s.cache not in ('auto', 'none')),
    *(_unsupported_with(name, default, '--cache_features', lambda s: s.cache_features)
      for name, default in (('augment', 'none'), ('mixup_alpha', 0.), ('input_pipeline', 'exact'))),
    *(_unsupported_with(name, default, '--input_pipeline=published',
                        lambda s: s.input_pipeline == 'published')
      for name, default in (('augment', 'none'), ('mixup_alpha', 0.),
                            ('class_sampling', 'natural'))),
    _unsupported_with('class_sampling', 'natural', '--class_weights=balanced',
                      lambda s: s.class_weights == 'balanced'),
    _unsupported_with('input_pipeline', 'exact', '--on_bad_image=skip',
                      lambda s: s.on_bad_image == 'skip'),
    Rule('--image_size must be height,width in pixels', 'image_size', flags.IMAGE_SIZE_REMEDY,
         lambda s: (s.image_size and len(s.image_size) > 2
                    and s.dataset not in ('synthetic', 'tfrecord'))),
    _only_for_data_sets('train_pattern', 'image_folder', 'tfrecord'),
    _only_for_data_sets('eval_pattern', 'image_folder', 'tfrecord'),
    _only_for_data_sets('validation_fraction', 'image_folder', 'tfrecord'),
    PIPELINE_OF_RECORDS_RULE._replace(is_broken=lambda s: (
        PIPELINE_OF_RECORDS_RULE.is_broken(s) and s.dataset != 'image_folder'
        and not data_folder.is_folder(s.dataset))),
    _only_for_data_sets('labels', 'image_folder', 'tfrecord', 'synthetic'),
    _only_for_data_sets('image_size', 'image_folder', 'tfrecord', 'oct2017', 'synthetic'),
    *(_only_for_data_sets(name, 'tfrecord')
      for name in ('image_key', 'label_key', 'label_offset', 'compression')),
    Rule('--lr_schedule=constant takes no --lr_boundaries_epochs and no --lr_values',
         'lr_boundaries_epochs lr_values',
         'omit them, or give --lr_schedule=piecewise, exponential or cosine',
         lambda s: s.lr_schedule == 'constant' and (s.lr_boundaries_epochs or s.lr_values)),
    Rule('--lr_schedule=piecewise takes N boundaries and N + 1 learning rates',
         'lr_boundaries_epochs lr_values',
         'give values such as --lr_boundaries_epochs=3,7 --lr_values=1e-3,1e-4,1e-5',
         lambda s: s.lr_schedule == 'piecewise' and not (
             0 < len(s.lr_boundaries_epochs) == len(s.lr_values) - 1)),
    Rule('--learning_rate must equal the first of --lr_values', 'learning_rate lr_values',
         'give --learning_rate={s.lr_values[0]}, or omit it',
         lambda s: s.lr_schedule == 'piecewise' and s.learning_rate not in (
             all_flags()['learning_rate'].default, s.lr_values[0])),
    Rule('the warm-up must end by the first boundary', 'lr_warmup_epochs lr_boundaries_epochs',
         'give --lr_warmup_epochs={s.lr_boundaries_epochs[0]} at most',
         lambda s: s.lr_schedule == 'piecewise' and s.lr_warmup_epochs > s.lr_boundaries_epochs[0]),
    Rule('--lr_schedule={s.lr_schedule} takes one boundary, the end of the decay',
         'lr_boundaries_epochs', 'give one boundary, or none to decay until the end of training',
         lambda s: _has_decay_schedule(s) and len(s.lr_boundaries_epochs) > 1),
    Rule('--lr_schedule=exponential takes one final rate above 0', 'lr_values',
         'give a rate such as --lr_values=1e-5; the first rate is --learning_rate',
         lambda s: s.lr_schedule == 'exponential' and not (
             len(s.lr_values) == 1 and s.lr_values[0] > 0)),
    Rule('--lr_schedule=cosine takes one final rate', 'lr_values',
         'give a rate such as --lr_values=1e-5; the first rate is --learning_rate',
         lambda s: s.lr_schedule == 'cosine' and len(s.lr_values) > 1),
    Rule('--lr_schedule={s.lr_schedule} requires --lr_values no higher than --learning_rate',
         'learning_rate lr_values', 'give a lower --lr_values',
         lambda s: _has_decay_schedule(s) and s.lr_values and s.lr_values[0] > s.learning_rate),
    # In some modes.
    Rule('--model_dir is required', '--mode={s.mode} without --model_dir', _propose_model_dir,
         lambda s: not s.model_dir,
         tuple(mode for mode in flags.MODES
               if mode not in (*flags.MODES_WITHOUT_MODEL_DIR, *_TRAINING))),
    _required_in_mode('output', 'write_tfrecords', 'give --output=FOLDER'),
    _only_in_modes('num_shards', 'give --mode=write_tfrecords, or omit --num_shards'),
    INPUT_RULE._replace(is_broken=lambda s: INPUT_RULE.is_broken(s) and (
        _has_built_in_dataset(s) or data_folder.is_folder(s.dataset))),
    _required_in_mode('runs', 'report',
                      'give --runs=FOLDER, or several folders to compare: --runs=FOLDER,FOLDER'),
    _only_in_modes('runs', 'give --mode=report, or omit --runs'),
    _only_in_modes('checkpoint', 'omit it; training resumes from the latest checkpoint'),
    Rule('training requires --train_steps or --train_epochs', '--mode={s.mode} without either',
         'give --train_steps=N or --train_epochs=N',
         lambda s: s.train_steps is None and s.train_epochs is None, _TRAINING),
    Rule('--export_format=onnx requires the extra `onnx`', 'export_format',
         'install it with `pip install estimator_train[onnx]`',
         lambda s: (s.export_dir or s.mode == 'export') and s.export_format == 'onnx' and not all(
             map(importlib.util.find_spec, _ONNX_PACKAGES)), ('export', *_TRAINING)),
    Rule('an .h5 file contains no preprocessing', 'export_format export_input',
         'give --export_input=tensor, or another --export_format',
         lambda s: s.export_format == 'h5' and s.export_input == 'pictures',
         ('export', *_TRAINING)),
    Rule('--trace_steps must not start after --train_steps', 'trace_steps train_steps',
         'give earlier steps',
         lambda s: s.trace_steps and s.train_steps and s.trace_steps[0] > s.train_steps, _TRAINING),
    Rule('XLA of TensorFlow 1.15 cannot initialize variables that are mirrored over logical CPU '
         'devices', 'enable_xla num_cpu_replicas', 'omit one of them',
         lambda s: s.enable_xla and s.num_cpu_replicas > 1 and (
             s.distribution_strategy in ('mirrored', 'multi_worker_mirrored')),
         (*_TRAINING, 'lr_finder')),
    Rule('--mode=lr_finder trains in a single process', 'distribution_strategy',
         'give --distribution_strategy=mirrored',
         lambda s: s.distribution_strategy in flags.MULTI_WORKER_STRATEGIES, ('lr_finder',)),
    Rule('only a run that evaluates can stop early', _STOPPING_FLAGS + ' mode',
         'give --mode=train_and_evaluate', _may_stop_early, ('train',)),
    Rule('only a run that evaluates before its end can stop early',
         _STOPPING_FLAGS + ' eval_every_epochs', 'omit --eval_every_epochs, or give '
         '--eval_every_epochs=1', lambda s: _may_stop_early(s) and s.eval_every_epochs == 0,
         ('train_and_evaluate',)),
    *(Rule('--early_stopping_{0} must not be less than --eval_every_{0}'.format(unit),
           'early_stopping_{0} eval_every_{0}'.format(unit),
           'give --early_stopping_{0}={{s.eval_every_{0}}} or more'.format(unit),
           functools.partial(_stops_before_evaluation, unit=unit), ('train_and_evaluate',))
      for unit in ('epochs', 'steps')),
    Rule('the warm-up must end before the end of the decay',
         'lr_warmup_epochs lr_boundaries_epochs train_epochs', 'give a shorter --lr_warmup_epochs',
         lambda s: (_has_decay_schedule(s) and s.lr_warmup_epochs
                    >= (*s.lr_boundaries_epochs, s.train_epochs or math.inf)[0]), _TRAINING),
    Rule('--mode=scaling takes no --train_epochs, as its runs differ in steps per epoch',
         'train_epochs', 'give --train_steps=N on the command line instead',
         lambda s: s.train_epochs is not None, ('scaling',)),
    Rule('--mode=scaling requires more steps than --throughput_warmup_steps',
         'train_steps throughput_warmup_steps', 'give more than {s.throughput_warmup_steps} steps',
         lambda s: s.train_steps is not None and s.train_steps <= s.throughput_warmup_steps,
         ('scaling',)),
    # The default strategy, mirrored, is accepted: the sweep replaces it by multi_worker_mirrored.
    Rule('--scale_over=workers requires synchronous workers', 'distribution_strategy',
         'give --distribution_strategy=multi_worker_mirrored or horovod',
         lambda s: s.scale_over == 'workers' and s.distribution_strategy not in (
             'mirrored', 'multi_worker_mirrored', 'horovod'), ('scaling',)),
    Rule('--all_reduce_alg={s.all_reduce_alg} does not support several workers', 'scale_over',
         'omit --all_reduce_alg', lambda s: (
             s.scale_over == 'workers' and s.all_reduce_alg in flags.SINGLE_HOST_ALL_REDUCE),
         ('scaling',)),
    Rule('--mode=scaling requires a strategy for several replicas', 'distribution_strategy',
         'give --distribution_strategy=mirrored or central_storage',
         lambda s: (s.scale_over == 'replicas'
                    and s.distribution_strategy in flags.SINGLE_REPLICA_STRATEGIES),
         ('scaling',)),
    Rule('--mode={s.mode} measures how images are read, but training with --cache_features reads '
         'no images', 'cache_features', 'omit it', lambda s: s.cache_features,
         ('scaling', 'input_benchmark')),
    _required_in_mode('workload', 'reproduce',
                      'give --workload=NAME, one of ' + ', '.join(WORKLOADS)),
    *(_must_have_default(name) for name in all_flags() if name not in _REPRODUCE_FLAGS),
)


def _format_flags(settings: Any, *names: str) -> str:
  """Returns `--FLAG=VALUE` for each flag that has a value or, if none has one, for all flags."""
  declared = all_flags()
  flags_with_value = [name for name in names if getattr(settings, name) not in (None, ())]
  return ' '.join(declared[name].to_argument(getattr(settings, name))
                  for name in flags_with_value or names)
