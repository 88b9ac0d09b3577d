"""Makes the signatures of functions whose keywords are flags, for `help` and for editors."""

import inspect
from typing import Any, Iterable, List, Optional, Sequence

from estimator_train.settings import rules
from estimator_train.settings.flag_type import all_flags
from estimator_train.settings.flags import TRAINING_MODES

# Flags of modes without a function, and of standard output.
_FLAGS_OF_OTHER_MODES = ('json', 'repeats', 'scale_over', 'workload', 'input', 'output')
SELF = inspect.Parameter('self', inspect.Parameter.POSITIONAL_OR_KEYWORD)


def make_signature(names: Iterable[str],
                   leading: Sequence[inspect.Parameter] = (),
                   shows_defaults: bool = True) -> inspect.Signature:
  """Returns the signature of a function that takes these flags as keywords.

  Args:
    leading: the parameters before the flags. They replace flags of the same name.
    shows_defaults: False if omitted flags have the values of a run or of other settings.
  """
  flags, leading_names = all_flags(), [parameter.name for parameter in leading]
  return inspect.Signature([*leading, *(
      inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=flags[name].annotation,
                        default=flags[name].default if shows_defaults else ...)
      for name in names if name not in leading_names)])


def names_of_mode(mode: str) -> List[str]:
  """Returns the names of the flags that apply to the function of a mode."""
  return [name for name in all_flags()
          if name not in _FLAGS_OF_OTHER_MODES and mode in rules.ONLY_IN_MODES.get(name, (mode,))
          and (name != 'mode' or mode in TRAINING_MODES)]  # Other functions set the mode.


def optional(name: str, annotation: Any) -> inspect.Parameter:
  """Returns a positional parameter whose default is None."""
  return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None,
                           annotation=Optional[annotation])
