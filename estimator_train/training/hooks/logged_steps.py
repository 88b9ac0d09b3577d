"""Which steps of a run are logged, so that the log and the event files of a long run stay small."""

# Up to here all candidates are logged; then every second one, from twice as many on every fourth.
_EACH_UP_TO = 10000


def is_logged(step: int, every: int = 1) -> bool:
  """Returns whether a step is logged.

  Multiples of `every` are candidates. The first 10,000 of them are logged, and then 5,000 each time
  that their number doubles: 45,000 of a million. The result depends on the step alone, so that all
  workers, and a resumed run, agree.

  Args:
    step: the global step, or the number of an epoch.
    every: `--log_every_steps`.
  """
  number, rest = divmod(step, every)
  return not rest and number % (1 << (number // _EACH_UP_TO).bit_length()) == 0
