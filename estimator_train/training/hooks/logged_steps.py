"""Which steps of a run are logged, so that the log and the event files of a long one stay small."""

# Of them each is logged; of as many again every second one, of twice as many again every fourth.
_EACH_UP_TO = 10000


def is_logged(step: int, every: int = 1) -> bool:
  """Returns whether a step is logged that is one of each so many.

  The first 10,000 of them are, and then 5,000 whenever the steps double: 45,000 in a run that would
  have a million. It goes by the step alone, so that all workers, and a resumed run, agree.

  Args:
    step: the global step, or the number of an epoch.
    every: `--log_every_steps`.
  """
  number, rest = divmod(step, every)
  return not rest and number % (1 << (number // _EACH_UP_TO).bit_length()) == 0
