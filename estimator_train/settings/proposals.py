"""Makes the commands that messages propose; from Python, the calls of the library's functions."""

import shlex
from typing import List, Sequence

from estimator_train.settings.flag_type import all_flags
from estimator_train.system.library_call import is_library_call
from estimator_train.system.summary import program_command

# The functions of the library, by their mode.
_FUNCTION_NAMES = {'train_and_evaluate': 'train', 'train': 'train', 'evaluate': 'evaluate',
                   'predict': 'predict', 'export': 'export', 'lr_finder': 'lr_find',
                   'report': 'report'}
_IMAGES, _ROWS = 'IMAGES', 'ROWS.csv'  # Stand for the input of the user.


def make_command(*arguments: str) -> str:
  """Returns a command that runs this program as the user has run it, with other arguments."""
  if is_library_call():
    return _make_call(arguments)
  return ' '.join([program_command(), *map(shlex.quote, arguments)])


def make_predict_command(model_dir: str, has_images: bool, checkpoint: str = 'latest') -> str:
  """Returns a command that predicts images or rows of the user.

  Args:
    checkpoint: the value of `--checkpoint`.
  """
  return make_command('--mode=predict', '--model_dir=' + model_dir,
                      *make_checkpoint_arguments(checkpoint),
                      '--input=' + (_IMAGES if has_images else _ROWS))


def make_checkpoint_arguments(checkpoint: str) -> List[str]:
  """Returns the arguments that select a checkpoint; none if it is the default."""
  return [] if checkpoint == all_flags()['checkpoint'].default else ['--checkpoint=' + checkpoint]


def _make_call(arguments: Sequence[str]) -> str:
  """Returns the call of the function that does what the command with these arguments does."""
  flags = all_flags()
  texts = dict(argument[2:].split('=', 1) for argument in arguments)
  mode = texts.pop('mode', flags['mode'].default)
  keywords = ['{}={}'.format(name, text if (name, text) == ('input', _IMAGES)
                             else repr(flags[name].parse(text))) for name, text in texts.items()]
  if mode == 'train':
    keywords.insert(0, 'mode={!r}'.format(mode))
  return '{}({})'.format(_FUNCTION_NAMES[mode], ', '.join(keywords))
