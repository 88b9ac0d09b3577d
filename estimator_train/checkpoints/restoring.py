"""Restores the weights of a checkpoint, or their moving averages if the checkpoint has them."""

import re
from typing import Dict, Sequence

import tensorflow.compat.v1 as tf

AVERAGE_SLOT = 'average'  # The slot of an optimizer for the moving average of a weight.
_AVERAGE_VARIABLE = re.compile(r'training(_\d+)?/[^/]+/(.+)/' + AVERAGE_SLOT + '$')


def map_weights_to_averages(checkpoint: str) -> Dict[str, str]:
  """Maps the names of weights to the names of their moving averages in a checkpoint."""
  matches = [_AVERAGE_VARIABLE.match(name) for name, _ in tf.train.list_variables(checkpoint)]
  return {match.group(2): match.group(0) for match in matches if match}


def make_saver(variables: Sequence[tf.Variable], checkpoint: str) -> tf.train.Saver:
  """Makes a saver that restores variables, and the lookup tables of the default graph.

  If the checkpoint has the moving average of a weight, the weight gets the value of this average.
  """
  average_names = map_weights_to_averages(checkpoint)
  by_name = {average_names.get(variable.op.name, variable.op.name): variable
             for variable in variables}
  by_name.update((table.name, table)
                 for table in tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS))
  return tf.train.Saver(by_name, sharded=True)
