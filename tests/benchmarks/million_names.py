"""What a million file names cost: seconds to list them and to the first batch, and memory.

  python tests/benchmarks/million_names.py [--sizes=10000,100000,1000000] [--rounds=3]

Makes folders of so many names, four classes in each of eight folders, which are hard links to a
small JPEG (on ext4 one copy for each 65,000), and measures from outside, each in a process of its
own: listing them alone, which does not import TensorFlow, and the first batch of training, 32
images at 224x224 and the default --shuffle_buffer. Only the images of the first batches are read.
The names have just been made, so that the kernel has them in memory. The folders are removed.
"""

import argparse
import base64
import glob
import json
import math
import os
import statistics
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

import common
import numpy as np

from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet, ImageSplit
from estimator_train.settings import Settings

TARGET_BYTES_PER_NAME = 400
BATCH_SIZE = 32
IMAGE_SIZE = (224, 224)
LABELS = ('CNV', 'DME', 'DRUSEN', 'NORMAL')
NUM_PARTS = 8

# Grey, 8x8.
_JPEG = base64.b64decode(
    '/9j/4AAQSkZJRgABAQEBLAEsAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG'
    '1RV19iZ2hnPk1xeXBkeFxlZ2P/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAABf/EABgQAAIDAAAAAAAAAAAA'
    'AAAAAAAEBSEy/9oACAEBAAA/ACYRPNH/2Q==')
_LISTED = 'listed '
_FIRST_BATCH = 'first batch done'


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('--sizes', type=_sizes, default=(10000, 100000, 1000000),
                      help='numbers of names (default: 10000,100000,1000000)')
  parser.add_count('--rounds', 3, 'runs of each')
  parser.add_count('--deadline_secs', 1800, 'seconds after which a run is killed')
  # What a child does.
  parser.add_argument('--list', help=argparse.SUPPRESS)
  parser.add_argument('--first_batch', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.list:
    _list(args.list)
  elif args.first_batch:
    _take_first_batch(args.first_batch)
  else:
    _measure(args.sizes, args.rounds, args.deadline_secs)


def _measure(sizes: Sequence[int], rounds: int, deadline_secs: float) -> None:
  machine = common.machine()
  common.warm_up(deadline_secs)
  measured = []
  for size in sizes:
    common.say('{:,} names'.format(size))
    with tempfile.TemporaryDirectory(prefix='benchmark-') as root:
      began = time.perf_counter()
      make_names(root, size)
      made_secs = time.perf_counter() - began
      common.say('{:,} names: made in {:.1f} s'.format(size, made_secs))
      runs = [_run(root, size, deadline_secs) for _ in range(rounds)]
    measured.append(dict(
        {key: statistics.median(run[key] for run in runs) for key in runs[0]}, names=size,
        made_secs=made_secs, runs=runs))
    common.say('{names:,} names: listed in {list_secs:.2f} s, first batch after '
               '{first_batch_secs:.2f} s, {peak_mb:.0f} MB'.format(**measured[-1]))
  _report(machine, rounds, measured)


def make_names(root: str, count: int) -> None:
  """Makes ROOT/part-N/LABEL/NAME, about 70 characters in a temporary folder of the system's."""
  source: Optional[str] = None
  number = 0
  folders = [os.path.join(root, 'part-{:02d}'.format(part), label)
             for part in range(NUM_PARTS) for label in LABELS]
  for index, folder in enumerate(folders, 1):
    os.makedirs(folder)
    label = os.path.basename(folder)
    while number < count * index // len(folders):
      name = '{}-{:09d}-{:06d}-{:02d}.jpeg'.format(label, number, number // 100, number % 100)
      source = _link(source, os.path.join(folder, name))
      number += 1


def _link(source: Optional[str], path: str) -> str:
  """Gives an image one more name, and returns the name to link the next one to."""
  if source is not None:
    try:
      os.link(source, path)
      return source
    except OSError:  # It has as many names as it may have, or may have one only.
      pass
  with open(path, 'wb') as file:
    file.write(_JPEG)
  return path


def _run(root: str, size: int, deadline_secs: float) -> Dict[str, float]:
  listing = common.run_python([os.path.abspath(__file__), '--list=' + root], deadline_secs)
  found = json.loads(listing.lines[-1][len(_LISTED):])
  if found['names'] != size:
    raise common.ChildFailed('{} of {} names were listed'.format(found['names'], size),
                             listing.lines)
  batch = common.run_python([os.path.abspath(__file__), '--first_batch=' + root], deadline_secs)
  return {'list_secs': found['secs'], 'list_peak_mb': listing.peak_bytes / 1e6,
          'first_batch_secs': batch.secs_until(_FIRST_BATCH),
          'peak_mb': batch.peak_bytes / 1e6, 'characters': found['characters']}


def _list(root: str) -> None:
  began = time.perf_counter()
  split = _describe(root).train
  secs = time.perf_counter() - began
  assert isinstance(split, ImageSplit)
  files = split.files
  print(_LISTED + json.dumps({'names': len(files), 'secs': secs,
                              'characters': sum(map(len, files)) / len(files)}))


def _take_first_batch(root: str) -> None:
  import tensorflow.compat.v1 as tf

  from estimator_train.inputs import factory
  tf.logging.set_verbosity(tf.logging.ERROR)
  dataset = _describe(root)
  input_fn = factory.make_train_input_fn(dataset, _settings(root), True, BATCH_SIZE)
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    iterator = tf.data.make_initializable_iterator(input_fn())
    batch = iterator.get_next()
    session.run(iterator.initializer)
    session.run(batch)
    print(_FIRST_BATCH, flush=True)


def _describe(root: str) -> DataSet:
  return registry.describe(_settings(root))


def _settings(root: str) -> Settings:
  return Settings(mode='input_benchmark', dataset='image_folder', image_size=IMAGE_SIZE,
                  train_pattern=os.path.join(glob.escape(root), '**', '*.jpeg'))


def _report(machine: Dict[str, Any], rounds: int, measured: List[Dict[str, Any]]) -> None:
  names = [row['names'] for row in measured]
  columns = {key: [row[key] for row in measured] for key in (
      'list_secs', 'list_peak_mb', 'first_batch_secs', 'peak_mb')}
  growth = {key: 1e6 * _slope(names, columns[key]) for key in ('list_peak_mb', 'peak_mb')}
  powers = {key: _slope([math.log(count) for count in names],
                        [math.log(secs) for secs in columns[key]])
            for key in ('list_secs', 'first_batch_secs')}
  reached = growth['peak_mb'] < TARGET_BYTES_PER_NAME

  print('{}; names of {:.1f} characters, medians of {} run(s)\n'.format(
      common.machine_line(machine), measured[-1]['characters'], rounds))
  print(common.markdown_table(
      ['names', 'listing, s', 'listing alone, peak MB', 'first batch, s', 'peak MB'], [
          ['{:,}'.format(row['names']), '{:.2f}'.format(row['list_secs']),
           '{:.0f}'.format(row['list_peak_mb']), '{:.2f}'.format(row['first_batch_secs']),
           '{:.0f}'.format(row['peak_mb'])] for row in measured]))
  print('\nthe seconds of listing grow as the number of names to the power of {list_secs:.2f}, '
        'those to the first batch to that of {first_batch_secs:.2f}'.format(**powers))
  print('peak memory grows by {:.0f} bytes a name ({:.0f} of listing alone); target less than {}: '
        '{}\n'.format(growth['peak_mb'], growth['list_peak_mb'], TARGET_BYTES_PER_NAME,
                      common.verdict(reached)))
  print(json.dumps({
      'benchmark': 'million_names', 'machine': machine, 'measured': measured,
      'bytes_per_name': growth['peak_mb'], 'list_bytes_per_name': growth['list_peak_mb'],
      'powers': powers, 'targets': {'bytes_per_name': TARGET_BYTES_PER_NAME},
      'reached': {'bytes_per_name': reached}}))


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
  """Returns the slope of the line with the least squares of distances."""
  return float(np.polyfit(xs, ys, 1)[0])


def _sizes(value: str) -> Sequence[int]:
  parts = value.split(',')
  if len(set(parts)) < 2 or not all(part.isdigit() and int(part) >= BATCH_SIZE for part in parts):
    raise argparse.ArgumentTypeError(
        'out of range: {}: give two numbers or more, at least {} each'.format(value, BATCH_SIZE))
  return [int(part) for part in parts]


if __name__ == '__main__':
  common.exit_with(main)
