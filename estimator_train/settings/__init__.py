"""Defines Settings, the validated values of all flags.

flags.py declares the flags, and rules.py the rules between flags.
"""

import inspect
import json
import math
import os
import re
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import attr

from estimator_train.errors import InvalidValue, UserError, flags_to_keywords, translate_to_keywords
from estimator_train.settings import (
  data_folder,
  flags as flag_groups,
  rules,
  signatures,
  user_code,
)
from estimator_train.settings.flag_type import (
  GROUP_TITLES,
  Flag,
  all_flags,
  explain_immutability,
  flags_of,
  unknown_keyword_error,
)

FLAGS_FILE = 'flags.txt'  # The flags of a run, in its --model_dir.
PREPROCESSING_FILE = 'preprocessing.json'  # See RestoredModel.describe_inputs.
PREPROCESS_ATTRIBUTE = 'estimator_train_preprocess'  # Of an .h5 file, see exporting/h5_model.py.


class GivenFlags(NamedTuple):
  """The flags that the user has given.

  Attributes:
    names: the names of the flags on the command line, or of the keywords.
    flagfiles: the arguments `--flagfile=FILE` on the command line.
    names_in_flagfiles: the names of the flags in these files.
  """
  names: FrozenSet[str] = frozenset()
  flagfiles: Tuple[str, ...] = ()
  names_in_flagfiles: FrozenSet[str] = frozenset()

  @property
  def all_names(self) -> FrozenSet[str]:
    return self.names | self.names_in_flagfiles


_NONE_GIVEN = GivenFlags()


@explain_immutability
@attr.s(auto_attribs=True, frozen=True, slots=True, init=False, repr=False)
class Settings:
  """The values of all flags, validated and immutable.

  Omitted flags have their defaults; `--help` explains each flag. Paths may be given as
  `pathlib.Path`, tuples as lists, and `model` and `dataset` as functions, which are stored by name.
  The attributes are the groups of flags in `--help`; `settings.devices.num_gpus` is the value of
  one flag. Functions of users may also read a flag directly, such as `settings.data_dir`, unless a
  group has its name. `evolve` and `items` take and return the values of flags by name.

  Raises:
    UserError: a keyword is unknown (the error is then also a TypeError), or a value is invalid by
      itself or in combination with other values (the error is then also a ValueError).
  """
  run: flag_groups.RunFlags
  data: flag_groups.DataFlags
  model: flag_groups.ModelFlags
  duration: flag_groups.DurationFlags
  evaluation: flag_groups.EvaluationFlags
  optimizer: flag_groups.OptimizerFlags
  devices: flag_groups.DeviceFlags
  cluster: flag_groups.ClusterFlags
  input: flag_groups.InputFlags
  checkpoints: flag_groups.CheckpointFlags
  reporting: flag_groups.ReportingFlags
  experiments: flag_groups.ExperimentFlags
  export: flag_groups.ExportFlags
  given: GivenFlags = attr.ib(eq=False)  # For the commands that messages propose.

  def __init__(self, **values: Any) -> None:
    with translate_to_keywords(InvalidValue):
      _set_checked_values(self, check_keywords(values), GivenFlags(frozenset(values)))

  @classmethod
  def from_flags(cls, values: Dict[str, Any], given: GivenFlags = _NONE_GIVEN) -> 'Settings':
    """Makes settings from the values of flags. Errors name the flags, not keyword arguments."""
    settings = cls.__new__(cls)
    _set_checked_values(settings, check_keywords(values), given)
    return settings

  def __getattr__(self, name: str) -> Any:
    if name not in all_flags():
      raise AttributeError(name)
    return dict(self.items())[name]

  def __dir__(self) -> List[str]:
    return sorted({*super().__dir__(), *all_flags()})

  def __repr__(self) -> str:
    return 'Settings({})'.format(', '.join(
        '{}={!r}'.format(name, value) for name, value in _list_values_to_give(self)))

  def items(self) -> List[Tuple[str, Any]]:
    """Returns the name and value of each flag."""
    return [(flag.name, getattr(getattr(self, _GROUP_ATTRIBUTES[group]), flag.name))
            for group in GROUP_TITLES for flag in flags_of(group)]

  def evolve(self, **changes: Any) -> 'Settings':
    """Returns a copy with other values of some flags. The copy is validated, too.

    A value unsets the flag that it excludes. For example, `train_steps` unsets `train_epochs`.
    """
    return self._change(
        changes, self.given._replace(names=self.given.names.union(changes)))

  def with_values_of_program(self, **changes: Any) -> 'Settings':
    """Returns a copy like `evolve`, with values that the user has not given."""
    return self._change(changes, self.given)

  def _change(self, changes: Dict[str, Any], given: GivenFlags) -> 'Settings':
    values = dict(self.items())
    rules.unset_excluded_flags(
        values, {name for name, value in changes.items() if value is not None})
    with translate_to_keywords(InvalidValue):
      return Settings.from_flags(dict(values, **changes), given)

  def with_constant_rate(self, learning_rate: float, **changes: Any) -> 'Settings':
    """Returns a copy with this learning rate in all steps, and with other changes."""
    return self.evolve(learning_rate=learning_rate, lr_schedule='constant', lr_boundaries_epochs=(),
                       lr_values=(), lr_warmup_epochs=0., scale_learning_rate='none', **changes)

  def for_mode(self, mode: str) -> 'Settings':
    """Returns a copy for a run in the given mode.

    Raises:
      UserError: a flag that the mode requires is missing, or a flag does not apply to the mode.
    """
    settings = self.evolve(mode=mode)
    rules.check_rules(settings, mode)
    return _add_values_of_files(settings)


# The attribute of Settings that has the values of a class of flags.
_GROUP_ATTRIBUTES = {field.type: field.name for field in attr.fields(Settings) if field.eq}


# These flags belong to other modes, or have another meaning there.
_FLAGS_WITHOUT_MEANING_IN_TRAINING = (
    'mode', 'json', 'checkpoint', 'input', 'output', 'num_shards', 'runs', 'workload', 'repeats',
    'scale_over', 'throughput_warmup_steps')
_EXAMPLE_EPOCHS = 10  # In a proposed command, if the user has not given --train_epochs.


def check_keywords(keywords: Dict[str, Any]) -> Dict[str, Any]:
  """Returns keyword arguments as values of flags; see Settings.

  Raises:
    UserError: a keyword is unknown, or its value is invalid by itself.
  """
  flags = all_flags()
  for name in keywords:
    if name not in flags:
      raise unknown_keyword_error(name)
  values = {name: flags[name].expand_home_folders(_convert_to_flag_value(flags[name], value))
            for name, value in keywords.items()}
  if isinstance(values.get('dataset'), str):
    values['dataset'] = data_folder.normalize(values['dataset'])
  for name, value in values.items():
    flags[name].check_value(value)
  return values


def _set_checked_values(settings: Settings, values: Dict[str, Any], given: GivenFlags) -> None:
  values = {**data_folder.choose_defaults(values), **values}
  for group, attribute in _GROUP_ATTRIBUTES.items():
    object.__setattr__(settings, attribute, group(**{
        flag.name: values[flag.name] for flag in flags_of(group) if flag.name in values}))
  object.__setattr__(settings, 'given', given)
  rules.check_rules(settings)


def _add_values_of_files(settings: Settings) -> Settings:
  """Returns a copy with the values that depend on the folder of the data and on earlier runs."""
  values: Dict[str, Any] = {}
  data, mode = settings.data, settings.run.mode
  recorded_flags = _read_recorded_flags(settings.run.model_dir)
  if mode in flag_groups.MODES_WITH_DATA and data_folder.is_folder(data.dataset):
    recorded_dataset = recorded_flags.get('dataset')
    values.update(data_folder.find_patterns(data, mode, recorded_dataset is None or (
        data_folder.is_same(data.dataset, recorded_dataset))))
  if settings.model.preprocess == 'auto' and mode != 'reproduce':
    values['preprocess'] = _choose_preprocess(settings, recorded_flags)
  return settings.with_values_of_program(**values) if values else settings


def per_replica_batch_size(global_batch_size: int, num_replicas: int,
                           num_micro_batches: int = 1) -> int:
  """Returns the number of examples per step and replica.

  Args:
    num_micro_batches: the number of parts into which each replica splits its examples.

  Raises:
    UserError: the global batch size is not divisible by the product of the other arguments. The
      error proposes the nearest batch sizes that are divisible.
  """
  divisor = num_replicas * num_micro_batches
  if global_batch_size % divisor == 0:
    return global_batch_size // num_replicas
  below = global_batch_size - global_batch_size % divisor
  nearest_sizes = [size for size in (below, below + divisor) if size > 0]
  raise UserError(
      '--batch_size must be divisible by the number of replicas'
      + (' times --gradient_accumulation_steps' if num_micro_batches > 1 else ''),
      '--batch_size={} for {} replicas{}'.format(
          global_batch_size, num_replicas, '' if num_micro_batches == 1 else
          ' --gradient_accumulation_steps={}'.format(num_micro_batches)),
      'use ' + ' or '.join(str(size) for size in nearest_sizes))


def learning_rate_scale(flags: flag_groups.OptimizerFlags) -> float:
  """Returns the factor by which `--scale_learning_rate` multiplies the learning rates.

  The flags give the learning rates for `--base_batch_size`. When the batch size grows, `linear`
  preserves the update per example (Goyal et al. 2017, arXiv:1706.02677), and `sqrt` preserves the
  variance of the update (Krizhevsky 2014, arXiv:1404.5997).
  """
  ratio = flags.batch_size / flags.base_batch_size
  factors = {'none': 1., 'linear': ratio, 'sqrt': math.sqrt(ratio)}
  return factors[flags.scale_learning_rate]


def to_texts(settings: Settings) -> Dict[str, Optional[str]]:
  """Returns the value of each flag as text, by name; None for a flag that is not set."""
  flags = all_flags()
  return {name: None if value in (None, ()) else flags[name].format(value)
          for name, value in settings.items()}


def to_flagfile(settings: Settings) -> str:
  """Returns a flagfile with the values of all flags. Flags that are not set are comments in it."""
  return ''.join(('# --{} is not set\n' if text is None else '--{}={}\n').format(name, text)
                 for name, text in to_texts(settings).items())


def parse_flagfile(content: str) -> Dict[str, Optional[str]]:
  """Inverts `to_flagfile`: returns what `to_texts` returned for the settings."""
  return {name or unset: user_code.current_name(text) if name else None
          for name, text, unset in re.findall(
      r'^(?:--(\w+)=(.*)|# --(\w+) is not set)$', content, re.MULTILINE)}


def to_arguments(settings: Settings) -> List[str]:
  """Returns command-line arguments for all flags that differ from their defaults."""
  flags = all_flags()
  return [flags[name].to_argument(value) for name, value in _list_values_to_give(settings)]


def _list_values_to_give(settings: Settings) -> List[Tuple[str, Any]]:
  """Returns the names and values of the flags from which the same settings can be made."""
  flags, is_folder = all_flags(), data_folder.is_folder(settings.data.dataset)
  return [(name, value) for name, value in settings.items()
          if value != flags[name].default or (
              is_folder and value is not None and flags[name].folder_default is not None)]


def _read_recorded_flags(model_dir: Optional[str]) -> Dict[str, Optional[str]]:
  """Returns the flags of the last training run in a folder; {} if they cannot be read."""
  if not model_dir:
    return {}
  try:
    with open(os.path.join(model_dir, FLAGS_FILE), encoding='utf-8') as file:
      return parse_flagfile(file.read())
  except (OSError, ValueError):  # If the run needs the file, the error is reported later.
    return {}


def _choose_preprocess(settings: Settings, recorded_flags: Dict[str, Optional[str]]) -> str:
  """Returns the value of `--preprocess` that belongs to the weights with which the run starts.

  Args:
    recorded_flags: the flags of the last training run in `--model_dir`.
  """
  flags = settings.model
  # A run is resumed, evaluated and exported with the preprocessing of its training.
  if recorded_flags and (not settings.run.trains or all(
      recorded_flags.get(name) == getattr(flags, name) for name in ('model', 'weights'))):
    return recorded_flags.get('preprocess') or 'unit'
  if flags.weights in ('none', 'imagenet'):
    return flags.chosen_preprocess
  preprocess = _read_preprocess_of_h5(flags.weights)
  if preprocess:
    return preprocess
  for folder in (flags.weights, os.path.dirname(flags.weights) or os.curdir,
                 re.sub('/best/.*', '', flags.weights)):
    flags_of_weights = _read_recorded_flags(folder)
    preprocess = (flags_of_weights.get('preprocess') or 'unit' if flags_of_weights
                  else _read_preprocess_of_export(folder))
    if preprocess:
      return preprocess
  return flags.chosen_preprocess


def _read_preprocess_of_h5(path: str) -> Optional[str]:
  """Returns the `--preprocess` that an .h5 file of this package contains; None for other files."""
  if not os.path.isfile(path):
    return None
  import h5py  # Only here: it takes 0.1 s.
  try:
    with h5py.File(path, 'r') as file:
      preprocess = file.attrs.get(PREPROCESS_ATTRIBUTE)
    is_known = isinstance(preprocess, str) and preprocess in all_flags()['preprocess'].choices[1:]
    return preprocess if is_known else None
  except Exception:  # h5py raises many kinds of exceptions for damaged files, which have no value.
    return None


def _read_preprocess_of_export(folder: str) -> Optional[str]:
  """Returns the `--preprocess` of an exported model; None if the folder contains none."""
  try:
    with open(os.path.join(folder, PREPROCESSING_FILE), encoding='utf-8') as file:
      description = json.load(file)
    if description['channel_order'] == 'BGR':
      return 'caffe'
    return {0: 'unit', 127.5: 'tf'}.get(description['mean'][0], 'torch')
  except (OSError, ValueError, LookupError, TypeError):
    return None


def to_training_arguments(settings: Settings, **changes: Any) -> List[str]:
  """Returns command-line arguments for training with the flags that another mode was given.

  Args:
    changes: other values of some flags; None or () to omit a flag.
  """
  flags, given = all_flags(), settings.given
  values = {name: value for name, value in settings.items() if name in given.names
            and name not in (*_FLAGS_WITHOUT_MEANING_IN_TRAINING, 'train_steps')}
  values.update(changes)
  if not (data_folder.is_folder(values.get('dataset', settings.data.dataset))
          or {'train_epochs', 'train_steps'} & {*values, *given.names_in_flagfiles}):
    values['train_epochs'] = _EXAMPLE_EPOCHS
  arguments = list(given.flagfiles)
  for name, value in values.items():
    if value not in (None, ()):
      arguments.append(flags[name].to_argument(value))
    elif name in given.names_in_flagfiles and name != 'model_dir':
      arguments.append('--{}='.format(name))
  return arguments


def _convert_to_flag_value(flag: Flag, value: Any) -> Any:
  """Converts the value of a keyword argument to the type of a value on the command line."""
  value = _convert_to_plain_value(value)
  if flag.accepts_square and type(value) is int:
    return value, value
  takes_texts = Tuple[str, ...] in flag.types
  return flag.parse(value) if takes_texts and isinstance(value, str) else value


def _convert_to_plain_value(value: Any) -> Any:
  if callable(value):
    return user_code.function_name(value)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, str):
    return user_code.current_name(value)
  if type(value).__module__ == 'numpy':  # Not imported here, because this takes 0.1 s.
    value = value.tolist()
  return tuple(map(_convert_to_plain_value, value)) if isinstance(value, (list, tuple)) else value


def _describe_keywords() -> str:
  lines = []
  for group, title in GROUP_TITLES.items():
    lines.append('\n{}:'.format(title.capitalize()))
    lines += ['  {}: {} (default: {!r}{})'.format(
        flag.name, flags_to_keywords(flag.description), flag.default,
        '' if flag.folder_default is None else '; {!r} for a folder'.format(flag.folder_default))
              for flag in flags_of(group)]
  return '\n'.join(lines)


Settings.__doc__ = '{}\n{}\n'.format(inspect.cleandoc(Settings.__doc__ or ''), _describe_keywords())
Settings.__signature__ = signatures.make_signature(all_flags())  # type: ignore[attr-defined]
Settings.evolve.__signature__ = signatures.make_signature(  # type: ignore[attr-defined]
    all_flags(), [signatures.SELF], shows_defaults=False)
