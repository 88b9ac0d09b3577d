"""Trains Keras models as TensorFlow 1.15 Estimators, on one device or many.

Example:

    import estimator_train

    result = estimator_train.train(model_dir='runs/mine', train_steps=100)
    print(result.accuracy)

The first call of a function imports TensorFlow. The functions neither parse a command line nor end
the process; they raise exceptions, such as UserError if an argument is invalid. They log to
`logging.getLogger('estimator_train')`. If neither this logger nor the root logger has a handler,
the messages are shown as on the command line.

__init__.pyi declares the public names for editors and type checkers.
"""

import importlib.util
import os
import sys
import types
from typing import Any, List

# Builds of TensorFlow 1.15 have this package. NVIDIA's build of it exists for Python 3.8.
if sys.version_info >= (3, 8) and importlib.util.find_spec('tensorflow_core') is None:
  _REASON = ('estimator_train requires TensorFlow 1.15, which exists for Python 3.6 and 3.7: '
             'this is Python {}.{}: use ./run_train.sh, which sets up Python 3.7, or the image of '
             'docs/docker.md'.format(*sys.version_info))
  if os.path.basename(''.join(getattr(sys, 'argv', [])[:1])) in ('-m', 'estimator-train'):
    print('error: ' + _REASON, file=sys.stderr)
    sys.exit(2)
  raise ImportError(_REASON)

from estimator_train.system import signals

# With this argv, `python -m estimator_train` is importing this package. Without a handler, SIGINT
# would end the program with a traceback and another exit code.
if getattr(sys, 'argv', [])[:1] == ['-m']:
  signals.install_exit_handlers()

from estimator_train.data import (
  ArraySplit,
  DataSet,
  ExampleSplit,
  IdxSplit,
  ImageSplit,
  RecordSplit,
  SyntheticSplit,
)
from estimator_train.errors import (
  StoppedBySignal,
  TrainingFailed,
  UserError,
  translate_to_keywords,
)
from estimator_train.library.functions import (
  convert,
  evaluate,
  export,
  lr_find,
  predict,
  report,
  train,
)
from estimator_train.library.process_state import restore_process_state
from estimator_train.settings import Settings
from estimator_train.version import __version__ as __version__

__all__ = ['ArraySplit', 'DataSet', 'ExampleSplit', 'IdxSplit', 'ImageSplit', 'RecordSplit',
           'Settings', 'StoppedBySignal', 'SyntheticSplit', 'TimeHistory', 'TrainingFailed',
           'UserError', 'convert', 'evaluate', 'export', 'lr_find', 'predict', 'report', 'train']


class _Package(types.ModuleType):
  """This package, with the attribute TimeHistory, whose first use imports TensorFlow."""

  def __getattr__(self, name: str) -> Any:
    if name != 'TimeHistory':
      raise AttributeError('module {!r} has no attribute {!r}'.format(__name__, name))
    with translate_to_keywords(), restore_process_state(restores_session=False):
      from estimator_train.training.time_history import TimeHistory
    return TimeHistory

  def __dir__(self) -> List[str]:
    return sorted([*__all__, '__version__'])


sys.modules[__name__].__class__ = _Package
