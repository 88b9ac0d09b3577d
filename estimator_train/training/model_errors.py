"""Translates errors of TensorFlow about a model into errors with a remedy."""

import contextlib
import re
import traceback
from typing import Iterator

from estimator_train.errors import InvalidValue, UserError
from estimator_train.settings.user_code import find_location

# What the text of TensorFlow's error contains, the rule that was broken, and the remedy.
_RULES = (
    (r'must be from the same graph|not an element of this graph|different graph',
     'a Lambda, loss, metric or optimizer must not use tensors or variables that were made outside '
     'of it, nor a layer get tensors by keyword',
     'compute them in the function or in a layer, or give plain numbers; give several tensors to a '
     'layer as a list'),
    (r'has `None` for gradient|No gradients provided for any variable',
     'each trainable weight must affect the loss',
     'give a loss to each output, or set trainable=False for the layer'),
)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
  """Translates the exceptions of a `with` block that builds or copies a model.

  Raises:
    InvalidValue: an exception of TensorFlow has a known remedy; other exceptions are not changed.
  """
  try:
    yield
  except UserError:
    raise
  except (ValueError, TypeError, RuntimeError) as error:
    for pattern, rule, remedy in _RULES:
      match = re.search('[^\n]*({})[^\n]*'.format(pattern), str(error))
      if match:
        location = find_location((frame.filename, frame.lineno)
                                 for frame in traceback.extract_tb(error.__traceback__))
        raise InvalidValue(rule, location + match.group().strip(), remedy) from error
    raise
