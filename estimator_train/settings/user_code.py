"""Calls functions that the user names as `package.module:function`, and translates their errors."""

import difflib
import importlib
import inspect
import logging
import os
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional, Tuple

from estimator_train.errors import UserError
from estimator_train.system import PACKAGE_DIR

_LOG = logging.getLogger('estimator_train')
# The folders of Python and of this package, which contain no code of the user.
_LIBRARY_FOLDERS = (os.path.dirname(os.__file__) + os.sep, PACKAGE_DIR + os.sep)
_PROGRAM = 'estimator_train.__main__'
_MAIN = '__main__'
_SESSION = 'session ' + os.urandom(4).hex()  # This process, if it is an interactive session.
_IMPORT = threading.local()  # Its `flag_text` is the flag whose module this thread imports.


def is_function_name(name: str) -> bool:
  """Returns whether the value of a flag names a function, `package.module:function`."""
  return ':' in name


def function_name(function: Callable[..., Any]) -> str:
  """Returns the name `package.module:function` by which `call_function` imports the function."""
  if not is_importable(function):
    raise UserError('a function given as a setting must be importable by its name', repr(function),
                    'define it at the top level of a module or notebook, not as a lambda, a method '
                    'or a nested function')
  module_name = function.__module__
  if sys.modules[module_name] is sys.modules[_MAIN]:  # Its name may be `__mp_main__`.
    module_name = _name_main_module()
  return '{}:{}'.format(module_name, function.__qualname__)


def current_name(name: str) -> str:
  """Returns the name of a function that an earlier version recorded as `__main__:function`."""
  module_name, _, attribute_name = name.rpartition(':')
  return '{}:{}'.format(_name_main_module(), attribute_name) if (
      module_name == _MAIN and hasattr(sys.modules[_MAIN], attribute_name)) else name


def describe_origin(names: Iterable[str]) -> str:
  """Returns what distinguishes functions from those of the same names in other runs.

  This is the folder of the script that this process runs, relative to the current folder. It is ''
  for the current folder, and without functions. A function that cannot be imported is identified by
  its script or, in a notebook or interactive session, by the process.

  Args:
    names: values of `--dataset` and `--model`.
  """
  module_names = [name.rpartition(':')[0] for name in names if is_function_name(name)]
  spec, path = _find_main_module()
  if _MAIN in module_names:
    return os.path.relpath(path) if os.path.isfile(path) else _SESSION
  # The program, and scripts that `python -m` runs, import modules from the current folder.
  imports_from_current_folder = _PROGRAM in sys.modules or spec is not None or not path
  return '' if imports_from_current_folder or not module_names else (
      os.path.dirname(os.path.relpath(path)))


def _find_main_module() -> Tuple[Any, str]:
  """Returns the spec of the script that this process runs, or None, and its path, or ''."""
  main = sys.modules[_MAIN]
  return getattr(main, '__spec__', None), getattr(main, '__file__', None) or ''


def _name_main_module() -> str:
  """Returns the name by which other processes import the script that this process runs.

  The name is `__main__` if it cannot be imported, for example in a notebook.
  """
  spec, path = _find_main_module()
  if spec is not None:  # Of `python -m`.
    return str(spec.name)
  name, extension = os.path.splitext(os.path.basename(path))
  other_path = getattr(sys.modules.get(name), '__file__', None) or ''
  is_hidden = name in sys.modules and os.path.realpath(other_path) != os.path.realpath(path)
  return _MAIN if extension != '.py' or '.' in name or is_hidden else name


def check_is_not_importing() -> None:
  """Raises a UserError if a module calls `train` while a flag imports the module."""
  flag_text = getattr(_IMPORT, 'flag_text', None)
  if flag_text is not None:
    raise UserError('a module with functions for flags must not train when it is imported',
                    flag_text, "call train below the line if __name__ == '__main__':")


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


def _make_not_found_error(flag: str, given: str, module_name: str) -> UserError:
  return UserError('--{} names a module that cannot be found'.format(flag), given,
                   'give package.module:function; run in the folder that contains {}.py, or add '
                   'that folder to PYTHONPATH'.format(module_name.replace('.', '/')))


def _import_function(flag: str, name: str) -> Any:
  flag_text = '--{}={}'.format(flag, name)
  module_name, _, attribute_name = name.rpartition(':')
  try:
    _IMPORT.flag_text = flag_text
    with translate_errors('the module of --{} failed'.format(flag), flag_text):
      # Importing the script that this process runs would run it again.
      module = (sys.modules[_MAIN] if module_name == _name_main_module()
                else importlib.import_module(module_name))
  except UserError as error:
    cause = error.__cause__
    # If this module or one of its packages is missing, the flag is wrong. If another module is
    # missing, or a module lacks an imported name (an ImportError), the user's code is wrong.
    if isinstance(cause, ModuleNotFoundError) and cause.name and (module_name + '.').startswith(
        cause.name + '.') or isinstance(cause, ValueError) and not module_name:
      raise _make_not_found_error(flag, '{} ({})'.format(flag_text, cause), module_name) from cause
    raise
  finally:
    _IMPORT.flag_text = None
  function = getattr(module, attribute_name, None)
  if callable(function):
    return function
  if getattr(module, '__file__', None) is None and hasattr(module, '__path__'):
    # The module is a folder, not a package.
    raise _make_not_found_error(flag, '{} ({} is a folder without __init__.py)'.format(
        flag_text, module_name), module_name)
  if module_name == _MAIN:
    raise UserError('--{} names a function of a notebook, or of a script that cannot be imported'
                    .format(flag), flag_text,
                    'put the functions into a file, such as mine.py, and give --{}=mine:{}, and '
                    'likewise the others'.format(flag, attribute_name))
  function_names = [key for key, value in vars(module).items()
                    if callable(value) and getattr(value, '__module__', None) == module.__name__]
  similar_names = (difflib.get_close_matches(attribute_name, function_names)
                   or sorted(function_names))
  raise UserError('--{} names a function that does not exist'.format(flag), '{} in {}'.format(
      flag_text, getattr(module, '__file__', 'a module of Python')),
                  'did you mean {}?'.format(', '.join(similar_names[:5])) if similar_names else
                  'this module defines no function')


def locate_user_code(frames: Iterable[Tuple[str, Optional[int]]]) -> str:
  """Returns the innermost line of the user's code as `file:line: `; '' if there is none.

  Args:
    frames: (file, line) of each frame, outermost first.
  """
  locations = ['{}:{}: '.format(file, line) for file, line in frames
               if not file.startswith(_LIBRARY_FOLDERS + ('<frozen',))
               and '-packages' + os.sep not in file]
  return locations[-1] if locations else ''
