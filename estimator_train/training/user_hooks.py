"""The hooks of a training run, and those that `--hooks` adds."""

import functools
from typing import Any, Callable, List

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.settings import Settings, user_code

_METHODS = ('begin', 'after_create_session', 'before_run', 'after_run', 'end')


def make_user_hooks(settings: Settings) -> List[tf.train.SessionRunHook]:
  """Returns the hooks of the function that `--hooks` names; none without this flag.

  Raises:
    UserError: the function does not exist, fails, or does not return a list of hooks.
  """
  name = settings.reporting.hooks
  if name is None:
    return []
  hooks = user_code.call_function('hooks', name, 'settings', settings)
  if not isinstance(hooks, (list, tuple)) or not all(
      isinstance(hook, tf.train.SessionRunHook) for hook in hooks):
    raise UserError('the function of --hooks must return a list of SessionRunHooks',
                    '--hooks={} returned {!r:.100}'.format(name, hooks),
                    'return a list of objects of a subclass of tf.train.SessionRunHook')
  return [_UserHook(hook, '--hooks=' + name) for hook in hooks]


class _UserHook(tf.train.SessionRunHook):
  """Calls a hook of the user, and translates its errors."""

  def __init__(self, hook: tf.train.SessionRunHook, given: str) -> None:
    for name in _METHODS:
      setattr(self, name, functools.partial(_call_method, given, getattr(hook, name)))


def _call_method(given: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
  """Calls a method of a hook of the user; `given` is the flag with its value."""
  with user_code.translate_errors('a hook failed', given):
    try:
      return method(*arguments, **named)
    except tf.errors.OpError as error:
      session_error = error
  raise session_error  # Unchanged, because the session recovers from some of these errors.
