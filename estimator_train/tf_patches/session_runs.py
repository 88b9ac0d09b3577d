"""Times selected calls of `Session.run` without the hooks around them, and counts sessions."""

import time
from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf
from tensorflow.python.client import session as session_lib
from tensorflow.python.keras import backend


def has_trained() -> bool:
  """Returns whether this process has probably trained or evaluated a model in a session.

  Not a workaround for a defect: this function uses the private names
  `_python_session_create_counter` (client/session.py:47) and `_SESSION` (keras/backend.py:95),
  because no public function returns the number of sessions that were created, or Keras's session.
  The conversion of a Keras model to an Estimator creates Keras's session, and another one to save
  the initial weights. Any further session may have trained.
  """
  has_keras_session = getattr(backend._SESSION, 'session', None) is not None
  created = session_lib._python_session_create_counter.get_cell().value()
  return created > (2 if has_keras_session else 0)


class SessionRunTimer:
  """Times a requested run of a session, and records checkpoints that are saved after the request.

  Defect: MonitoredTrainingSession (tensorflow_core/python/training/monitored_session.py:544 and
  580) calls Estimator's hooks before the user's hooks. One of Estimator's hooks saves checkpoints
  and starts their evaluation. Symptom: to a hook of the user, saving and evaluating a checkpoint
  seem to be part of the step.

  Attributes:
    session: the session whose `run` is replaced; None: no session.
    began: the time of the clock just before the requested run, in seconds.
    ended: the time of the clock just after the requested run, in seconds.
    has_saved: whether a saver has saved a checkpoint since the request, in another run.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
    self.session: Optional[tf.Session] = None
    self.began = self.ended = 0.
    self.has_saved = False
    self._clock = clock
    self._is_run_requested = False
    self._timed_run: Optional[Callable[..., Any]] = None
    self._replaced_run: Optional[Callable[..., Any]] = None

  def attach(self, session: tf.Session) -> None:
    """Replaces `run` of a session by a method that records the times, until `detach`.

    The session that was attached before is detached.
    """
    self.detach()
    self._replaced_run = vars(session).get('run')
    run, clock = session.run, self._clock

    def timed_run(fetches: Any, *args: Any, **options: Any) -> Any:
      # The run of a step has a dict of the fetches of the caller and of the hooks.
      is_step = isinstance(fetches, dict) and 'caller' in fetches
      if not (self._is_run_requested and is_step):
        result = run(fetches, *args, **options)
        self.has_saved = self.has_saved or _is_checkpoint(
            result, args[0] if args else options.get('feed_dict'))
        return result
      self._is_run_requested = False
      self.began = clock()
      result = run(fetches, *args, **options)
      self.ended = clock()
      return result

    session.run = self._timed_run = timed_run
    self.session = session

  def detach(self) -> None:
    """Restores `run` of the session, unless another object has replaced it since then."""
    if self.session is not None and vars(self.session).get('run') is self._timed_run:
      del self.session.run
      if self._replaced_run is not None:
        self.session.run = self._replaced_run
    self.session = self._timed_run = self._replaced_run = None

  def time_next_run(self) -> None:
    """Requests that the next run of the session be timed: the run of a training step."""
    self._is_run_requested = True
    self.has_saved = False


def _is_checkpoint(result: Any, feed_dict: Optional[Dict[Any, Any]]) -> bool:
  """Returns whether a run has saved a checkpoint: a saver is fed a path, and returns this path."""
  return isinstance(result, bytes) and result in [
      tf.compat.as_bytes(value) for value in (feed_dict or {}).values() if isinstance(value, str)]
