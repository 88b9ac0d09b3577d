"""The command line: the only file that knows absl.flags; it turns them into Settings."""

import re
from typing import Any, Callable, Dict, Sequence, Tuple

from absl import flags

from estimator_train import settings as settings_lib
from estimator_train.configs.workloads import WORKLOADS
from estimator_train.datasets import registry as datasets
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.settings import choices, flag_parsing, flagfiles, user_code, validation

_USAGE = """\
python -m estimator_train --flagfile=estimator_train/configs/NAME.flags [--FLAG=VALUE...]

Trains a Keras model as a TensorFlow 1.15 Estimator, evaluates it, and reports how fast it trained.
Flags after the flagfile win. The last line on standard output is the result, as JSON.
"""

_STRING, _INTEGER, _FLOAT, _BOOLEAN, _LIST = (
    flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_boolean,
    flags.DEFINE_list)

# What a value must be where absl cannot read it; strings it always can.
_EXPECTED = {_INTEGER: 'a whole number', _FLOAT: 'a number', _BOOLEAN: 'true or false',
             _LIST: 'a list with commas between, and quotes in pairs'}


# Pairs of which a run takes one.
_ALTERNATIVES = (('train_steps', 'train_epochs'),
                 ('save_checkpoints_steps', 'save_checkpoints_secs'))


def _one_of(choices: Sequence[str]) -> str:
  return '{' + ', '.join(choices) + '}'


# As --help shows them: (title, ((flag, definer, help), ...)). Defaults are those of Settings.
_GROUPS: Sequence[Tuple[str, Sequence[Tuple[str, Callable[..., Any], str]]]] = (
    ('what', (
        ('mode', _STRING, _one_of(choices.MODES)),
        ('dataset', _STRING, _one_of(datasets.NAMES) + ', or package.module:function, a function '
         'that returns an estimator_train.DataSet'),
        ('data_dir', _STRING, 'folder of the data set\'s files; what is missing is downloaded'),
        ('train_pattern', _STRING, 'image files to train on, such as \'DATA/train/**/*.jpeg\'; a '
         'file\'s folder is its class (image_folder)'),
        ('eval_pattern', _STRING, 'image files to evaluate on (image_folder)'),
        ('labels', _LIST, 'the classes in the order of the outputs; the folders\' names, sorted, '
         'when not given (image_folder; synthetic: ten)'),
        ('image_size', _LIST, 'height,width in pixels that images get; 224,224 when not given '
         '(synthetic: height,width or height,width,channels; 28,28,1)'),
        ('preprocess', _STRING, 'pixels to [0, 1], or as ImageNet weights expect them: '
         + _one_of(choices.PREPROCESSINGS)),
        ('model', _STRING, _one_of(models.NAMES) + ', or package.module:function, a function that '
         'returns a Keras model'),
        ('weights', _STRING, 'initial weights: none (random), imagenet (downloads), or the path '
         'of an .h5 file or a checkpoint'),
        ('trainable_layers', _INTEGER, 'the last layers of a pretrained network that train, its '
         'head apart; 4 of vgg16 and all of others when not given'))),
    ('where', (
        ('model_dir', _STRING, 'folder of everything the run makes; a run found there goes on'),
        ('export_dir', _STRING, 'folder of exported models, a numbered folder each; training '
         'exports at its end where it is given'),
        ('export_format', _STRING, _one_of(choices.EXPORT_FORMATS)))),
    ('how long', (
        ('train_steps', _INTEGER, 'global step to stop at (scaling: of each run)'),
        ('train_epochs', _INTEGER, 'passes over the data to stop after'),
        ('eval_every_steps', _INTEGER, 'evaluate each so many steps, not only at the end'),
        ('early_stopping_steps', _INTEGER, 'stop when --best_metric has not become better for so '
         'many steps'),
        ('stop_at_accuracy', _FLOAT, 'stop once an evaluation reaches it, such as 0.9'))),
    ('step', (
        ('batch_size', _INTEGER, 'examples a step over all replicas (global); of the '
         'run of one replica or worker (scaling)'),
        ('optimizer', _STRING, _one_of(choices.OPTIMIZERS)),
        ('learning_rate', _FLOAT, 'of the optimizer; where every schedule begins'),
        ('scale_learning_rate', _STRING, 'how it grows with the global batch size: '
         + _one_of(choices.LEARNING_RATE_SCALINGS)),
        ('base_batch_size', _INTEGER, 'the global batch size that --learning_rate and --lr_values '
         'are meant for'),
        ('lr_schedule', _STRING, 'how the learning rate goes on: '
         + _one_of(choices.LR_SCHEDULES)),
        ('lr_boundaries_epochs', _LIST, 'epochs, as 3,7, at which the rate changes (piecewise), or '
         'the one at which it has fallen (exponential, cosine; the end of training when not '
         'given)'),
        ('lr_values', _LIST, 'the rates before, between and after the boundaries, as '
         '1e-3,1e-4,1e-5 (piecewise), or the one that it falls to (exponential; cosine: 0 when '
         'not given)'),
        ('lr_warmup_epochs', _FLOAT, 'epochs over which the learning rate first rises from 0'),
        ('class_weights', _STRING, 'balanced: each class counts alike in the training loss: '
         + _one_of(choices.CLASS_WEIGHTS)),
        ('on_nan', _STRING, 'end the run at a loss that is not finite, or go on, as loss scaling '
         'leaves out such a step (--dtype=mixed): ' + _one_of(choices.ON_NAN)),
        ('seed', _INTEGER, 'of the initial weights and of the order of the examples'))),
    ('devices', (
        ('distribution_strategy', _STRING, _one_of(choices.STRATEGIES)),
        ('num_gpus', _INTEGER, 'GPUs to use; -1: all there are, 0: none'),
        ('num_cpu_replicas', _INTEGER, 'replicas on logical CPU devices, where there is no GPU'),
        ('all_reduce_alg', _STRING,
         'how gradients are added up over GPUs: ' + _one_of(choices.ALL_REDUCE_ALGORITHMS)),
        ('num_packs', _INTEGER, 'parts that the gradients are packed into for the all-reduce'),
        ('gpu_memory_growth', _BOOLEAN, 'take GPU memory as needed, not all at once'),
        ('dtype', _STRING, 'mixed: TensorFlow has parts of the graph compute in float16 on GPUs of '
         'compute capability 7.0 or newer, with dynamic loss scaling: '
         + _one_of(choices.DTYPES)),
        ('enable_xla', _BOOLEAN, 'have XLA compile what it can of the graph'),
        ('inter_op_parallelism_threads', _INTEGER,
         'operations run at once; 0: as many as cores, but one with oneDNN'),
        ('intra_op_parallelism_threads', _INTEGER, 'threads of an operation; 0: as cores'))),
    ('input', (
        ('shuffle_buffer', _INTEGER, 'examples to shuffle among'),
        ('num_parallel_calls', _INTEGER, 'images decoded at once; 0: as many as cores'),
        ('prefetch', _INTEGER, 'batches prepared ahead'),
        ('cache', _STRING, 'keep the training examples, decoded and resized to uint8: none, '
         'memory, a folder, or auto, which is memory for idx files of up to 256 MiB'),
        ('cache_features', _BOOLEAN, 'compute the output of the frozen layers once, and train '
         'on that; it is kept in memory, or in the folder of --cache'),
        ('cache_features_dtype', _STRING, 'how that is kept: '
         + _one_of(choices.CACHE_FEATURES_DTYPES)),
        ('on_bad_image', _STRING, 'stop at an image that cannot be decoded, or train without it: '
         + _one_of(choices.ON_BAD_IMAGE)),
        ('max_bad_images', _FLOAT, 'the largest share of images to skip'))),
    ('report', (
        ('throughput_warmup_steps', _INTEGER, 'first steps left out of the timing'),
        ('trace_steps', _STRING, 'first:last, global steps to write a Chrome trace of: '
         'model_dir/trace.json'),
        ('log_every_steps', _INTEGER, 'steps between two lines of progress; after 10,000 lines '
         'twice as many, and again each time that the steps double'),
        ('repeats', _INTEGER, 'times that each point of --mode=scaling is run, in mixed order'),
        ('scale_over', _STRING, 'what --mode=scaling takes more and more of; workers are processes '
         'on cores of their own: '
         + _one_of(choices.SCALE_OVER)),
        ('workload', _STRING, 'the published one that --mode=reproduce runs: '
         + _one_of(tuple(WORKLOADS))),
        ('report_page', _BOOLEAN, 'write the page about the run, model_dir/report/index.html'))),
    ('keep', (
        ('save_checkpoints_steps', _INTEGER, 'steps between checkpoints'),
        ('save_checkpoints_secs', _INTEGER,
         'seconds between checkpoints (600 when neither this nor steps are given)'),
        ('keep_checkpoint_max', _INTEGER, 'checkpoints to keep, besides the best'),
        ('save_retry_secs', _INTEGER, 'seconds to go on trying to save a checkpoint that cannot be '
         'saved, as on a full disk, before the run ends with code 3; 0: none'),
        ('best_metric', _STRING, 'what makes a checkpoint the best of those that are evaluated: '
         + _one_of(choices.BEST_METRICS)),
        ('checkpoint', _STRING, 'the one to evaluate: ' + ', '.join(choices.KEPT_CHECKPOINTS)
         + ', or the path of any, such as DIR/model.ckpt-500'),
        ('peer_timeout_secs', _INTEGER, 'seconds without a word from another task of the cluster '
         'after which it is lost, and the run ends with code 138'),
        ('step_timeout_secs', _INTEGER, 'seconds without a step after which a run on a cluster '
         'ends with code 138; 0: never'),
        ('start_timeout_secs', _INTEGER, 'seconds to wait for all tasks of the cluster to come'))),
    ('predict', (
        ('input', _STRING, 'what to predict: image files or idx files of images, as a pattern such '
         'as \'DATA/**/*.jpeg\''),
        ('output', _STRING, 'file of the predictions, JSON lines, or CSV where its name ends in '
         '.csv; -: standard output'))),
    ('log', (
        ('verbosity', _INTEGER, '1: TensorFlow\'s own log and warnings too'),)),
)


def parse(argv: Sequence[str]) -> settings_lib.Settings:
  """Turns a command line into Settings.

  Args:
    argv: the arguments, without the program's name.

  Raises:
    UserError: a flag that is unknown, of the wrong type, out of range, or against another.
  """
  arguments = flagfiles.expand(argv)
  try:
    return _parsed(arguments)
  except UserError as error:
    raise flagfiles.with_places(error, arguments) from error


def _parsed(arguments: Sequence[flagfiles.Argument]) -> settings_lib.Settings:
  values = _define()
  _check_values_are_there(arguments, values)
  try:
    # known_only: what absl does to propose the nearest name fails for a long one.
    rest = values(['estimator_train'] + [argument.text for argument in arguments], known_only=True)
  except (flags.Error, ValueError) as error:
    raise _reworded(error) from error
  for text in rest[1:]:
    if text != '--':
      raise flag_parsing.unknown(text, list(values))
  given = {name: values[name].value for name in settings_lib.Settings._fields}
  _let_the_command_line_choose(given, arguments)
  given['image_size'] = flag_parsing.height_width(given['image_size'])
  given['trace_steps'] = flag_parsing.first_last(given['trace_steps'])
  given['labels'] = tuple(given['labels'])
  for name in ('lr_boundaries_epochs', 'lr_values'):
    given[name] = flag_parsing.numbers(name, given[name])
  settings = settings_lib.Settings(**given)
  if not user_code.is_own(settings.dataset):
    validation.check_choice('dataset', settings.dataset, datasets.NAMES)
  if not user_code.is_own(settings.model):
    validation.check_choice('model', settings.model, models.NAMES)
  return settings


def help_text() -> str:
  """Returns what `--help` prints."""
  defaults = settings_lib.Settings._field_defaults
  lines = [_USAGE]
  for title, group in _GROUPS:
    lines.append('{}:'.format(title))
    for name, _, text in group:
      default = defaults[name]
      shown = '' if default in (None, ()) else ' (default: {})'.format(str(default).lower())
      lines.append('  --{}: {}{}'.format(name, text, shown))
    lines.append('')
  lines.append('  --flagfile: read flags from this file, one a line\n  --help: this text\n\n'
               './run_train.sh --local_workers=N [--local_ps=M] [--max_restarts=K] FLAG...\n'
               '  a cluster of N workers on this machine\n'
               './run_train.sh --tensorboard FLAG...\n'
               '  with TensorBoard beside the training')
  return '\n'.join(lines)


def wants_help(argv: Sequence[str]) -> bool:
  """Whether the command line asks for the flags' explanation."""
  return any(argument in ('--help', '-help', '-h', '--helpfull', '--helpshort')
             for argument in argv)


def _define() -> flags.FlagValues:
  """Returns newly defined flags, apart from absl's global ones, so that parsing has no memory."""
  values = flags.FlagValues()
  defaults: Dict[str, Any] = settings_lib.Settings._field_defaults
  for _, group in _GROUPS:
    for name, definer, text in group:
      definer(name, defaults[name], text, flag_values=values)
  return values


def _check_values_are_there(arguments: Sequence[flagfiles.Argument],
                            values: flags.FlagValues) -> None:
  """Raises a UserError where a flag's value would be the next flag, or nothing."""
  texts = [argument.text for argument in arguments]
  for text, following in zip(texts, texts[1:] + ['--']):
    name = text.lstrip('-')
    if text.startswith('-') and following.startswith('--') and (
        name in values and not values[name].boolean):
      raise UserError('--{} has no value'.format(name), text,
                      'write it as --{}=VALUE'.format(name))


def _let_the_command_line_choose(given: Dict[str, Any],
                                 arguments: Sequence[flagfiles.Argument]) -> None:
  """Unsets the flagfile's one of two alternatives where the other is on the command line itself."""
  directly = {argument.flag for argument in arguments if not argument.place}
  for pair in _ALTERNATIVES:
    chosen = directly.intersection(pair)
    if len(chosen) == 1:
      (other,) = set(pair) - chosen
      given[other] = None


def _reworded(error: Exception) -> UserError:
  """Returns absl's error in the form of ours."""
  text = str(error)
  match = re.match(r'flag --(\w+)=(.*?): ', text, re.DOTALL)
  if match:
    name, value = match.groups()
    definer = next(definer for _, group in _GROUPS for flag, definer, _ in group if flag == name)
    return UserError('--{} must be {}'.format(name, _EXPECTED[definer]),
                     '--{}={}'.format(name, value), 'see --help')
  match = re.match(r'--?no(\w+)=(.*) does not take an argument', text, re.DOTALL)
  if match:
    return UserError('a flag with no before its name takes no value',
                     '--no{}={}'.format(*match.groups()),
                     'write --{0}=true or --{0}=false'.format(match.group(1)))
  return UserError('the flags cannot be read', text, 'see --help')
