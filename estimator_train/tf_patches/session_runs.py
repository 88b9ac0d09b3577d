"""Times selected calls of `Session.run`, without the hooks that run before and after the calls."""

import time
from typing import Any, Callable

import tensorflow.compat.v1 as tf


class SessionRunTimer:
  """Times one requested run of a session, and records whether a checkpoint was saved since then.

  Defect: MonitoredTrainingSession (tensorflow_core/python/training/monitored_session.py:544 and
  580) calls Estimator's hooks before the user's hooks. One of Estimator's hooks saves checkpoints
  and starts their evaluation. Symptom: to a hook of the user, saving and evaluating a checkpoint
  seem to be part of the step.

  Attributes:
    began: the time of the clock just before the requested run, in seconds.
    ended: the time of the clock just after the requested run, in seconds.
    has_saved: whether a saver has saved a checkpoint since the request, in another run.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = self.ended = 0.
    self.has_saved = False
    self._clock = clock
    self._is_run_requested = False

  def attach(self, session: tf.Session) -> None:
    """Replaces `run` of a session by a method that records the times, until `detach`."""
    run, clock = session.run, self._clock

    def timed_run(fetches: Any, *args: Any, **options: Any) -> Any:
      # The run of a step has a dict of the fetches of the caller and of the hooks.
      is_step = isinstance(fetches, dict) and 'caller' in fetches
      if not (self._is_run_requested and is_step):
        # A saver fetches a tensor by its name, which starts with `save`.
        self.has_saved = self.has_saved or (
            isinstance(fetches, str) and fetches.startswith('save'))
        return run(fetches, *args, **options)
      self._is_run_requested = False
      self.began = clock()
      result = run(fetches, *args, **options)
      self.ended = clock()
      return result

    session.run = timed_run

  @staticmethod
  def detach(session: tf.Session) -> None:
    """Restores `run` of a session."""
    vars(session).pop('run', None)

  def time_next_run(self) -> None:
    """Requests that the next run of the session be timed: the run of a training step."""
    self._is_run_requested = True
    self.has_saved = False
