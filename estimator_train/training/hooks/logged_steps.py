"""Selects the steps to log, so that the log and the event files of a long run stay small."""

# All candidates below this number are logged; up to twice the number every second one, up to four
# times the number every fourth one, and so on.
_LOG_EACH_BELOW = 10000


def is_logged(step: int, every: int = 1) -> bool:
  """Returns whether a step is logged.

  Multiples of `every` are candidates. The first 10,000 of them are logged, and another 5,000 each
  time that their number doubles: 43,000 of a million. The result depends on the step alone, so that
  all workers, and a resumed run, agree.

  Args:
    step: the global step, or the number of an epoch.
    every: `--log_every_steps`.
  """
  candidate, remainder = divmod(step, every)
  return not remainder and candidate % (1 << (candidate // _LOG_EACH_BELOW).bit_length()) == 0
