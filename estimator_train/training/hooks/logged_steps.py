"""Selects the steps to log, so that the log and the event files of a long run stay small."""

_NUM_ALL_LOGGED = 10000  # The first 10,000 candidates are all logged, see is_logged.


def is_logged(step: int, every: int = 1) -> bool:
  """Returns whether a step is logged.

  The multiples of `every` are candidates. Of the first 10,000 candidates all are logged, of the
  next 10,000 every second one, of the next 20,000 every fourth one, and so on. Of a million
  candidates, 43,000 are logged. The result does not depend on earlier calls, so all workers and a
  resumed run log the same steps.

  Args:
    step: the global step, or the number of an epoch.
    every: for steps, `--log_every_steps`; for epochs, 1.
  """
  candidate, remainder = divmod(step, every)
  return not remainder and candidate % (1 << (candidate // _NUM_ALL_LOGGED).bit_length()) == 0
