"""Logs the missing tasks during the rendezvous, and ends the rendezvous after a timeout."""

import logging
import time
from typing import Callable, Sequence

from estimator_train.errors import PeerLost

_LOG_EVERY_SECS = 60.
_MAX_NAMES = 20


class StartTimeout:
  """The timeout of the rendezvous, which starts when this object is made.

  Args:
    timeout_secs: seconds to wait for the other members.
    log: called with each line to log, such as the missing members once a minute.
    clock: returns the time in seconds, from any origin.
  """

  def __init__(self, timeout_secs: float,
               log: Callable[[str], None] = logging.getLogger('estimator_train').info,
               clock: Callable[[], float] = time.monotonic) -> None:
    self.log, self.clock = log, clock
    self._timeout_secs, self._started_at = timeout_secs, clock()
    self._logged_at = self._started_at

  def log_or_raise(self, missing: Sequence[str]) -> None:
    """Logs the missing tasks if a minute has passed since the last such line.

    Args:
      missing: descriptions of the tasks that this task waits for.

    Raises:
      PeerLost: the timeout has expired.
    """
    now = self.clock()
    names = ', '.join(missing[:_MAX_NAMES])
    if len(missing) > _MAX_NAMES:
      names += ' and {} more'.format(len(missing) - _MAX_NAMES)
    if now - self._started_at >= self._timeout_secs:
      raise PeerLost('gave up waiting for {} after {:.0f} s (--start_timeout_secs)'.format(
          names, self._timeout_secs))
    if now - self._logged_at >= _LOG_EVERY_SECS:
      self._logged_at = now
      self.log('waiting for {}: {:.0f} s of at most {:.0f}'.format(
          names, now - self._started_at, self._timeout_secs))
