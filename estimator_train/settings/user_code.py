"""The user's own functions, `package.module:function`: found and called, errors in one line."""

import difflib
import importlib
import inspect
import logging
import os
import sys
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

from estimator_train.errors import UserError
from estimator_train.files import paths

_LOG = logging.getLogger('estimator_train')
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, paths.PACKAGE + os.sep)


def is_own(name: str) -> bool:
  """Whether a flag's value is the name of a function, `package.module:function`."""
  return ':' in name


def check_name(flag: str, name: str, names: Sequence[str]) -> None:
  """Raises a UserError where a name of something built in is none of those there are."""
  if name not in names:
    raise UserError('--{} has no such choice'.format(flag), '--{}={}'.format(flag, name),
                    'choose from {}, or give package.module:function'.format(', '.join(names)))


def name_of(function: Callable[..., Any]) -> str:
  """Returns the name of a function, by which `call` finds it again.

  Raises:
    UserError: it cannot be found by a name.
  """
  module = getattr(function, '__module__', None)
  name = getattr(function, '__qualname__', '')
  if getattr(sys.modules.get(module or ''), name, None) is not function:
    raise UserError('a function of your own must be found by its name', repr(function),
                    'define it by itself in a module or a notebook\'s cell, not as a lambda, a '
                    'method or inside of a function')
  return '{}:{}'.format(module, name)


def call(flag: str, name: str, what_for: str, *arguments: Any) -> Any:
  """Imports a function and calls it, with the arguments or, where it takes none, without.

  Args:
    flag: that names it.
    name: the flag's value.
    what_for: the arguments, as an error names them.
    *arguments: that it may take.

  Raises:
    UserError: it is not there, takes something else, or raises.
  """
  given = '--{}={}'.format(flag, name)
  function = _find(flag, name, given)
  try:
    parameters = inspect.signature(function).parameters.values()
    required = [parameter for parameter in parameters
                if parameter.default is parameter.empty and parameter.kind not in (
                    parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
    chosen = arguments if required else ()
    inspect.signature(function).bind(*chosen)
  except (TypeError, ValueError) as error:
    raise UserError('the function of --{} takes something else'.format(flag),
                    '{} ({})'.format(given, error),
                    'let it take nothing or ({})'.format(what_for)) from error
  with told('the function of --{} fails'.format(flag), given):
    return function(*chosen)


@contextmanager
def told(what: str, given: str) -> Iterator[None]:
  """Turns what the user's code raises into a UserError that names its file and line.

  Args:
    what: has failed.
    given: the flag that named the code.
  """
  try:
    yield
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    _LOG.debug('%s: %s', what, given, exc_info=True)
    raise UserError(what, '{} ({}{})'.format(given, _place(error), _in_words(error)),
                    'mend it; --verbosity=1 shows the traceback') from error


def _find(flag: str, name: str, given: str) -> Any:
  module_name, _, function_name = name.partition(':')
  try:
    with told('the module of --{} fails'.format(flag), given):
      module = importlib.import_module(module_name)
  except UserError as error:
    cause = error.__cause__
    # A module that is missing in the user's module is an error of that one.
    if isinstance(cause, ImportError) and cause.name and (module_name + '.').startswith(
        cause.name + '.') or isinstance(cause, ValueError) and not module_name:
      raise UserError('--{} names a module that cannot be found'.format(flag),
                      '{} ({})'.format(given, cause),
                      'give package.module:function, importable from this folder or PYTHONPATH'
                      ) from cause
    raise
  function = getattr(module, function_name, None)
  if callable(function):
    return function
  there = [key for key, value in vars(module).items()
           if callable(value) and getattr(value, '__module__', None) == module.__name__]
  near = difflib.get_close_matches(function_name, there) or sorted(there)
  raise UserError('--{} names a function that is not there'.format(flag), given,
                  'did you mean {}?'.format(', '.join(near[:5])) if near
                  else '{} defines none'.format(getattr(module, '__file__', module_name)))


def _place(error: BaseException) -> str:
  """Returns where the user's code was, the last line of it that ran: `file:line: `."""
  if isinstance(error, SyntaxError) and error.filename:
    return '{}:{}: '.format(error.filename, error.lineno)
  places = ['{}:{}: '.format(frame.filename, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(_LIBRARIES + ('<frozen',))
            and '-packages' + os.sep not in frame.filename]
  return places[-1] if places else ''


def _in_words(error: BaseException) -> str:
  text = error.msg if isinstance(error, SyntaxError) else str(error)
  return ': '.join(filter(None, (type(error).__name__, text)))
