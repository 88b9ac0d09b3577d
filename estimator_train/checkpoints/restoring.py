"""Restores the weights of a checkpoint, or their moving averages if the checkpoint has these."""

import re
from typing import Dict, Sequence

import tensorflow.compat.v1 as tf

AVERAGE_SLOT = 'average'  # The slot of an optimizer for the moving average of a weight.
_AVERAGE_VARIABLE = re.compile(r'training(_\d+)?/[^/]+/(.+)/' + AVERAGE_SLOT + '$')


def names_of_averages(checkpoint: str) -> Dict[str, str]:
  """Returns the names of the averages in a checkpoint, by the names of the weights."""
  matches = [_AVERAGE_VARIABLE.match(name) for name, _ in tf.train.list_variables(checkpoint)]
  return {match.group(2): match.group(0) for match in matches if match}


def make_saver(variables: Sequence[tf.Variable], checkpoint: str) -> tf.train.Saver:
  """Makes a saver that restores variables, and weights from their averages in the checkpoint.

  Also restores the tables of the default graph.
  """
  names = names_of_averages(checkpoint)
  by_name = {names.get(variable.op.name, variable.op.name): variable for variable in variables}
  by_name.update((table.name, table)
                 for table in tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS))
  return tf.train.Saver(by_name, sharded=True)
