"""How well data that is sorted by class is mixed: by this package, and by the stages of 2018.

  python tests/benchmarks/shuffle_quality.py [--examples=100000] [--classes=10] [--batch_size=128]
      [--shuffle_buffer=5000]

Reads indices instead of examples. The examples of each class are consecutive, in equally large
files of 1,000 examples. The displacement is the mean distance of an example from its place in the
files, divided by the number of examples: 1/3 for a random permutation. The classes per batch are
the mean number of different classes in a batch of the first epoch.
"""

import json
from typing import Any, Dict

import common
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.order import ExampleOrder, Shard

EXAMPLES_PER_FILE, READERS = 1000, 16


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_count('--examples', 100000, 'examples, a multiple of 1,000')
  parser.add_count('--classes', 10, 'classes')
  parser.add_count('--batch_size', 128, 'examples of a batch')
  parser.add_count('--shuffle_buffer', 5000, 'examples in the buffer of shuffle_and_repeat')
  args = parser.parse_args()
  orders = {
      'exact': ExampleOrder(args.examples, 1, Shard()).compute_indices(0, args.examples),
      'published, image files': _published_files(args.examples, args.shuffle_buffer),
      'published, records': _published_records(args.examples, args.shuffle_buffer)}
  rows = [dict(_measure(order, args.classes, args.batch_size), pipeline=name)
          for name, order in orders.items()]
  for row in rows:
    print('{pipeline:24} displacement {displacement:.3f}, classes per batch '
          '{classes_per_batch:.2f}'.format(**row))
  print(json.dumps(dict(vars(args), rows=rows)))


def _published_files(examples: int, shuffle_buffer: int) -> np.ndarray:
  """Image files: the whole list is shuffled, as by list_files, and then the buffer."""
  return _read(tf.data.Dataset.range(examples).shuffle(examples, seed=1), examples, shuffle_buffer)


def _published_records(examples: int, shuffle_buffer: int) -> np.ndarray:
  """Records: the files are shuffled, and several are read alternately."""
  files = tf.data.Dataset.range(examples // EXAMPLES_PER_FILE).shuffle(examples, seed=1)
  records = files.apply(tf.data.experimental.parallel_interleave(
      lambda file: tf.data.Dataset.range(EXAMPLES_PER_FILE).map(
          lambda record: file * EXAMPLES_PER_FILE + record), READERS))
  return _read(records, examples, shuffle_buffer)


def _read(indices: tf.data.Dataset, examples: int, shuffle_buffer: int) -> np.ndarray:
  shuffled = indices.apply(tf.data.experimental.shuffle_and_repeat(shuffle_buffer, seed=1))
  with tf.Session() as session:
    order: np.ndarray = session.run(tf.data.experimental.get_single_element(
        shuffled.take(examples).batch(examples)))
  return order


def _measure(order: np.ndarray, classes: int, batch_size: int) -> Dict[str, Any]:
  batches = (order * classes // len(order))[:len(order) // batch_size * batch_size].reshape(
      -1, batch_size)
  return {'displacement': float(np.abs(order - np.arange(len(order))).mean() / len(order)),
          'classes_per_batch': float(np.mean([len(set(batch)) for batch in batches]))}


if __name__ == '__main__':
  main()
