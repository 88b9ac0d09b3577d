"""Times the runs of a session, apart from the hooks around them."""

import time
from typing import Any, Callable

import tensorflow.compat.v1 as tf


class SessionRunTimer:
  """Records when the next run of a session begins and ends, and whether a checkpoint was saved.

  Defect: MonitoredTrainingSession (tensorflow_core/python/training/monitored_session.py:544 and
  580) calls the hooks of Estimator, among them the one that saves checkpoints and has them
  evaluated, before the user's hooks. Symptom: in a hook of the user, saving a checkpoint and its
  evaluation seem to be part of the step.

  Attributes:
    began: the clock just before the first run since `start`, in seconds.
    ended: the clock just after that run, in seconds.
    has_saved: whether a saver has saved a checkpoint since `start`, outside of that run.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = self.ended = 0.
    self.has_saved = False
    self._clock = clock
    self._is_waiting = False

  def attach(self, session: tf.Session) -> None:
    """Replaces `run` of a session by a method that records the times, until `detach`."""
    run, clock = session.run, self._clock

    def timed_run(fetches: Any, *args: Any, **options: Any) -> Any:
      if not self._is_waiting:
        # A saver runs its operation by name.
        self.has_saved = self.has_saved or (
            isinstance(fetches, str) and fetches.startswith('save'))
        return run(fetches, *args, **options)
      self._is_waiting = False
      self.began = clock()
      result = run(fetches, *args, **options)
      self.ended = clock()
      return result

    session.run = timed_run

  @staticmethod
  def detach(session: tf.Session) -> None:
    """Restores `run` of a session."""
    vars(session).pop('run', None)

  def start(self) -> None:
    """Waits for the next run, which is that of a step."""
    self._is_waiting = True
    self.has_saved = False
