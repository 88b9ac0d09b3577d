"""Calls functions that the user names as `package.module:function`, and translates their errors."""

import difflib
import importlib
import inspect
import logging
import os
import sys
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional, Tuple

from estimator_train.errors import UserError
from estimator_train.system import PACKAGE_DIR

_LOG = logging.getLogger('estimator_train')
# The folders of Python and of this package, which contain no code of the user.
_LIBRARY_FOLDERS = (os.path.dirname(os.__file__) + os.sep, PACKAGE_DIR + os.sep)


def is_function_name(name: str) -> bool:
  """Returns whether the value of a flag names a function, `package.module:function`."""
  return ':' in name


def function_name(function: Callable[..., Any]) -> str:
  """Returns the name `package.module:function` by which `call_function` imports the function."""
  if not is_importable(function):
    raise UserError('a function given as a setting must be importable by its name', repr(function),
                    'define it at the top level of a module or notebook, not as a lambda, a method '
                    'or a nested function')
  return '{}:{}'.format(function.__module__, function.__qualname__)


def qualified_name(function: Any) -> str:
  """Returns the name of any function for messages, `module.qualname`."""
  return '{}.{}'.format(getattr(function, '__module__', ''),
                        getattr(function, '__qualname__', repr(function)))


def is_importable(function: Callable[..., Any]) -> bool:
  """Returns whether a function is at the top level of a module, so that its name identifies it."""
  module = sys.modules.get(getattr(function, '__module__', None) or '')
  return getattr(module, getattr(function, '__qualname__', ''), None) is function


def call_function(flag: str, name: str, parameter_names: str, *arguments: Any) -> Any:
  """Imports a function, calls it, and returns the result.

  The function is called without arguments if it has no required parameters.

  Args:
    flag: the name of the flag that names the function.
    name: the value of the flag, `package.module:function`.
    parameter_names: the names of `arguments` for the error, such as `image_shape, num_classes`.

  Raises:
    UserError: the function does not exist, has other parameters, or raises an exception.
  """
  flag_text = '--{}={}'.format(flag, name)
  function = _import_function(flag, name)
  try:
    parameters = inspect.signature(function).parameters.values()
    required = [parameter for parameter in parameters
                if parameter.default is parameter.empty and parameter.kind not in (
                    parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
    passed_arguments = arguments if required else ()
    inspect.signature(function).bind(*passed_arguments)
  except (TypeError, ValueError) as error:
    raise UserError('the function of --{} has the wrong parameters'.format(flag),
                    '{} ({})'.format(flag_text, error),
                    'define it without parameters or with ({})'.format(parameter_names)) from error
  with translate_errors('the function of --{} failed'.format(flag), flag_text):
    return function(*passed_arguments)


@contextmanager
def translate_errors(what: str, code_name: str) -> Iterator[None]:
  """Translates exceptions of the user's code into a UserError with the file and line.

  Args:
    what: the first part of the error, which states what failed.
    code_name: a flag with its value, or the name of a function.
  """
  try:
    yield
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    _LOG.debug('%s: %s', what, code_name, exc_info=True)
    message = str(error)
    location = locate_user_code((frame.filename, frame.lineno)
                                for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError):
      message = error.msg
      if error.filename:
        location = '{}:{}: '.format(error.filename, error.lineno)
    raise UserError(what, '{} ({}{})'.format(
        code_name, location, ': '.join(filter(None, (type(error).__name__, message)))),
                    'fix this code; --verbosity=1 shows the traceback') from error


def _import_function(flag: str, name: str) -> Any:
  flag_text = '--{}={}'.format(flag, name)
  module_name, _, attribute_name = name.partition(':')
  try:
    with translate_errors('the module of --{} failed'.format(flag), flag_text):
      module = importlib.import_module(module_name)
  except UserError as error:
    cause = error.__cause__
    # If this module or one of its packages is missing, the flag is wrong. If another module is
    # missing, or a module lacks an imported name (an ImportError), the user's code is wrong.
    if isinstance(cause, ModuleNotFoundError) and cause.name and (module_name + '.').startswith(
        cause.name + '.') or isinstance(cause, ValueError) and not module_name:
      raise UserError('--{} names a module that cannot be found'.format(flag),
                      '{} ({})'.format(flag_text, cause),
                      'give package.module:function, importable from this folder or PYTHONPATH'
                      ) from cause
    raise
  function = getattr(module, attribute_name, None)
  if callable(function):
    return function
  function_names = [key for key, value in vars(module).items()
                    if callable(value) and getattr(value, '__module__', None) == module.__name__]
  similar_names = (difflib.get_close_matches(attribute_name, function_names)
                   or sorted(function_names))
  raise UserError('--{} names a function that does not exist'.format(flag), flag_text,
                  'did you mean {}?'.format(', '.join(similar_names[:5])) if similar_names else
                  '{} defines no function'.format(getattr(module, '__file__', module_name)))


def locate_user_code(frames: Iterable[Tuple[str, Optional[int]]]) -> str:
  """Returns the innermost line of the user's code as `file:line: `; '' if there is none.

  Args:
    frames: (file, line) of each frame, outermost first.
  """
  locations = ['{}:{}: '.format(file, line) for file, line in frames
               if not file.startswith(_LIBRARY_FOLDERS + ('<frozen',))
               and '-packages' + os.sep not in file]
  return locations[-1] if locations else ''
