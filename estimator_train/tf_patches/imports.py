"""Makes the import of TensorFlow faster. This module does not import TensorFlow itself."""

import contextlib
import importlib
import importlib.util
import inspect
import sys
import types
from typing import Any, Iterator

# TensorFlow imports these modules, but training does not use them before its first step.
_DEFERRED_MODULES = ('h5py', 'requests')
_getfullargspec = inspect.getfullargspec


@contextlib.contextmanager
def accelerate_import() -> Iterator[None]:
  """Makes a `with` block that imports TensorFlow take less time.

  Defect: tensorflow_core/python/keras/callbacks.py:55 imports requests, and
  tensorflow_core/python/keras/saving/hdf5_format.py:39 imports h5py, with 143 modules, even
  if nothing uses them. tensorflow_core/python/util/tf_export.py:385 and deprecation.py in the same
  folder inspect the signatures of about 1,700 functions. Symptom: these take a tenth of the import.
  """
  proxies = [_DeferredModule(name) for name in _DEFERRED_MODULES
             if name not in sys.modules and importlib.util.find_spec(name) is not None]
  sys.modules.update((proxy.__name__, proxy) for proxy in proxies)
  inspect.getfullargspec = _get_argument_names_and_defaults
  try:
    yield
  finally:
    inspect.getfullargspec = _getfullargspec
    for proxy in proxies:  # A later import, such as the user's, gets the module itself.
      if sys.modules.get(proxy.__name__) is proxy:
        del sys.modules[proxy.__name__]


class _DeferredModule(types.ModuleType):
  """Stands for a module in the modules that import it. The first use imports the module."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      del sys.modules[self.__name__]
    return getattr(importlib.import_module(self.__name__), name)


def _get_argument_names_and_defaults(func: object) -> inspect.FullArgSpec:
  """Returns inspect.getfullargspec(func), but without signature objects for most functions."""
  if not isinstance(func, types.FunctionType) or (
      not vars(func).keys().isdisjoint(('__signature__', '_partialmethod'))):
    return _getfullargspec(func)
  code = func.__code__
  num_positional = code.co_argcount
  num_named = num_positional + code.co_kwonlyargcount
  has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
  names = code.co_varnames
  num_parameters = num_named + has_varargs + bool(code.co_flags & inspect.CO_VARKEYWORDS)
  return inspect.FullArgSpec(
      args=list(names[:num_positional]),
      varargs=names[num_named] if has_varargs else None,
      varkw=names[num_parameters - 1] if code.co_flags & inspect.CO_VARKEYWORDS else None,
      defaults=func.__defaults__ or None,
      kwonlyargs=list(names[num_positional:num_named]),
      # A copy, because callers may change it, and some keep this function after the import.
      kwonlydefaults=dict(func.__kwdefaults__) if func.__kwdefaults__ else None,
      # functools.wraps copies annotations of parameters that the wrapper does not have.
      annotations={name: annotation for name, annotation in func.__annotations__.items()
                   if name in names[:num_parameters] or name == 'return'})
