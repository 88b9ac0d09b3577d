"""How costs grow with sizes: each is measured at three sizes or more, on a log-log line.

  python tests/benchmarks/growth.py [NAME...] [--repetitions=3] [--quick]

NAME is one of SUBJECTS, all when there is none. A run is a process of its own and starts anew; the
sizes of a subject run in turn. The slope of the line through the medians is the power of the size
that the cost grows with: 0 is flat, 1 linear. The greatest slope between two neighbours shows what
begins late: the cost of a start is there at every size, and flattens the line. Where either is
above its bound the exit code is 1.

--quick shows that all works, at tiny sizes: its slopes mean nothing.
"""

import base64
import gzip
import json
import os
import statistics
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import common
import numpy as np

DEADLINE_SECS = 1800
FIRST_STEP, STEP, PEAK, IMAGE = ('s to the first step', 's a step', 'MB at most', 's an image')
# What an own data set of these runs reads.
FOLDER_VARIABLE = 'ESTIMATOR_TRAIN_GROWTH_FOLDER'
# A cost that is flat, one that is so but for a little of each, and one that is linear, with room
# for noise: more of it between neighbours.
FLAT, NEARLY_FLAT, LINEAR = .05, .2, 1.05
_NEIGHBOURS = .15


LABELS = ('CNV', 'DME', 'DRUSEN', 'NORMAL')
NUM_PARTS = 8

# Grey, 8x8.
_JPEG = base64.b64decode(
    '/9j/4AAQSkZJRgABAQEBLAEsAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG'
    '1RV19iZ2hnPk1xeXBkeFxlZ2P/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAABf/EABgQAAIDAAAAAAAAAAAA'
    'AAAAAAAEBSEy/9oACAEBAAA/ACYRPNH/2Q==')


class Subject(NamedTuple):
  """What grows, and what that may cost.

  Attributes:
    title: what the size is of.
    sizes: three or more, and tiny ones.
    measure: returns the figures of a run at a size, by name; gets an empty folder.
    bounds: the greatest slope of each figure.
  """
  title: str
  sizes: Sequence[int]
  tiny: Sequence[int]
  measure: Callable[[int, str], Dict[str, float]]
  bounds: Dict[str, float]


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(SUBJECTS))
  parser.add_count('--repetitions', 3, 'runs at each size')
  parser.add_argument('--quick', action='store_true', help='one run at tiny sizes')
  args = parser.parse_args()
  unknown = [name for name in args.names if name not in SUBJECTS]
  if unknown:
    parser.error('no such subject: {}: choose from {}'.format(', '.join(unknown),
                                                              ', '.join(SUBJECTS)))
  machine = common.machine()
  common.warm_up(DEADLINE_SECS)
  found = [line for name in args.names or list(SUBJECTS)
           for line in _lines(name, 1 if args.quick else args.repetitions, args.quick)]
  _report(machine, args, found)
  if not args.quick and not all(line['reached'] for line in found):
    sys.exit(1)


def _lines(name: str, repetitions: int, quick: bool) -> List[Dict[str, Any]]:
  """Measures a subject; returns a line of each figure."""
  subject = SUBJECTS[name]
  sizes = subject.tiny if quick else subject.sizes
  values: Dict[str, Dict[int, List[float]]] = {}
  for number in range(1, repetitions + 1):
    for size in sizes:
      with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
        figures = subject.measure(size, folder)
      common.log('{} {}/{}: {:,}: {}'.format(name, number, repetitions, size, ', '.join(
          '{:,.4g} {}'.format(value, figure) for figure, value in figures.items())))
      for figure, value in figures.items():
        values.setdefault(figure, {}).setdefault(size, []).append(value)
  return [line_of(subject.title, figure, at, subject.bounds[figure])
          for figure, at in values.items()]


def line_of(title: str, figure: str, at: Dict[int, List[float]], bound: float) -> Dict[str, Any]:
  """Returns the slope of a figure over the sizes, with the greatest between two neighbours."""
  sizes, medians = list(at), [statistics.median(values) for values in at.values()]
  logs = np.log([sizes, medians])
  slope = float(np.polyfit(*logs, deg=1)[0])
  steepest = float(np.max(np.diff(logs[1]) / np.diff(logs[0])))
  return {'title': title, 'figure': figure, 'sizes': sizes, 'medians': medians, 'slope': slope,
          'steepest': steepest, 'bound': bound,
          'reached': slope <= bound and steepest <= bound + _NEIGHBOURS}


def _report(machine: Dict[str, Any], args: Any, lines: Sequence[Dict[str, Any]]) -> None:
  print('{}; medians of {} run(s)\n'.format(common.machine_line(machine),
                                            1 if args.quick else args.repetitions))
  if args.quick:
    print('Of --quick, whose sizes are tiny: NO MEASUREMENT.\n')
  print(common.markdown_table(
      ['what grows', 'sizes', 'cost', 'medians', 'slope', 'steepest', 'at most', ''],
      [[line['title'], ', '.join('{:,}'.format(size) for size in line['sizes']), line['figure'],
        ', '.join('{:,.3g}'.format(value) for value in line['medians']),
        '{slope:.2f}'.format(**line), '{steepest:.2f}'.format(**line),
        '{bound:g}'.format(**line), common.verdict(line['reached'])] for line in lines]) + '\n')
  print(json.dumps({'benchmark': 'growth', 'machine': machine, 'quick': args.quick,
                    'lines': lines}))


def _train(flags: Sequence[str], folder: str = '') -> Dict[str, float]:
  """Trains by these flags; returns seconds to the first step and of a step, and the peak."""
  here = Path(__file__).resolve().parent
  run = common.run_package(
      ['--mode=train', '--report_page=false', '--log_every_steps=1000000', '--num_gpus=0']
      + list(flags), DEADLINE_SECS, variables={
          'PYTHONPATH': os.pathsep.join(map(str, [common.ROOT, here.parent, here])),
          FOLDER_VARIABLE: folder})
  return {FIRST_STEP: run.throughput['time_to_first_step_secs'],
          STEP: run.throughput['step_secs']['p50'], PEAK: run.child.peak_bytes / 1e6}


def _only(figures: Dict[str, float], *names: str) -> Dict[str, float]:
  return {name: figures[name] for name in names}


def _examples(size: int, folder: str) -> Dict[str, float]:
  rows = np.random.RandomState(0).randint(0, 256, (1000, 28 * 28), np.uint8)
  for split, count in (('train', size), ('test', 100)):
    with gzip.open(os.path.join(folder, split + '-images.gz'), 'wb', 1) as file:
      file.write(struct.pack('>IIII', 0x803, count, 28, 28))
      for _ in range(count // len(rows)):
        file.write(rows.tobytes())
      file.write(rows[:count % len(rows)].tobytes())
    with gzip.open(os.path.join(folder, split + '-labels.gz'), 'wb', 1) as file:
      file.write(struct.pack('>II', 0x801, count) + bytes(number % 10 for number in range(count)))
  return _only(_train(['--dataset=growth:idx_files', '--model=own_models:two_layers',
                       '--batch_size=32', '--train_steps=20'], folder), FIRST_STEP, PEAK)


def idx_files() -> Any:
  """The data set of `_examples`, for `--dataset`."""
  from estimator_train import DataSet, IdxSplit
  train, test = (IdxSplit(*[os.path.join(os.environ[FOLDER_VARIABLE], split + '-' + name + '.gz')
                            for name in ('images', 'labels')]) for split in ('train', 'test'))
  return DataSet('grown', tuple('0123456789'), (28, 28, 1), train, test)


def _files(size: int, folder: str) -> Dict[str, float]:
  _make_names(folder, size)
  return _only(_train(['--dataset=image_folder', '--model=own_models:two_layers',
                       '--image_size=8,8', '--batch_size=32', '--train_steps=20',
                       '--train_pattern=' + os.path.join(folder, '**', '*.jpeg'),
                       '--eval_pattern=' + os.path.join(folder, 'part-00', '*', '*.jpeg')]),
               FIRST_STEP, PEAK)


def _make_names(root: str, count: int) -> None:
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


def _source_size(size: int, folder: str) -> Dict[str, float]:
  """Decodes files of size x size pixels."""
  common.run_python(['-c', _MAKE_IMAGES, folder, str(size)], DEADLINE_SECS)
  child = common.run_python(
      ['-m', 'estimator_train', '--mode=input_benchmark', '--dataset=image_folder',
       '--train_pattern=' + os.path.join(folder, '*', '*.jpeg'), '--image_size=64,64',
       '--model=fashion_cnn', '--batch_size=16'], DEADLINE_SECS)
  return {IMAGE: 1 / json.loads(child.lines[-1])['warm_images_per_sec']}


# Smooth colors, as in photographs: noise would be all of a JPEG's time.
_MAKE_IMAGES = '''
import os, sys
import numpy as np
import tensorflow.compat.v1 as tf
folder, size = sys.argv[1], int(sys.argv[2])
with tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
  coarse = tf.placeholder(tf.float32, [1, 16, 16, 3])
  jpeg = tf.image.encode_jpeg(tf.cast(tf.image.resize_images(coarse, [size, size])[0], tf.uint8))
  for number in range(64):
    path = os.path.join(folder, 'ab'[number % 2])
    os.makedirs(path, exist_ok=True)
    pixels = np.random.RandomState(number).uniform(0, 255, [1, 16, 16, 3])
    with open(os.path.join(path, '{}.jpeg'.format(number)), 'wb') as file:
      file.write(session.run(jpeg, {coarse: pixels}))
'''


def _image_size(size: int, unused_folder: str) -> Dict[str, float]:
  """Trains on size x size pixels."""
  return _train(['--dataset=synthetic', '--model=fashion_cnn', '--batch_size=8',
                 '--image_size={0},{0}'.format(size), '--train_steps=40'])


def _batch_size(size: int, unused_folder: str) -> Dict[str, float]:
  return _train(['--dataset=synthetic', '--model=fashion_cnn', '--image_size=28,28',
                 '--batch_size={}'.format(size), '--train_steps=40'])


def _steps(size: int, unused_folder: str) -> Dict[str, float]:
  return _only(_train(['--dataset=fashion_mnist_sample', '--model=own_models:two_layers',
                       '--batch_size=32', '--save_checkpoints_steps=1000',
                       '--train_steps={}'.format(size)]), STEP, PEAK)


def _replicas(size: int, unused_folder: str) -> Dict[str, float]:
  return _train(['--dataset=synthetic', '--model=fashion_cnn', '--image_size=28,28',
                 '--batch_size=256', '--num_cpu_replicas={}'.format(size), '--train_steps=40'])


SUBJECTS: Dict[str, Subject] = {
    # The first three are cached in memory, the last one is streamed.
    'examples': Subject('examples in two gzipped files', (6000, 60000, 300000, 600000),
                        (60, 120, 240), _examples, {FIRST_STEP: LINEAR, PEAK: LINEAR}),
    'files': Subject('image files', (10000, 100000, 1000000), (64, 128, 256), _files,
                     {FIRST_STEP: LINEAR, PEAK: LINEAR}),
    'source_size': Subject('side of the image files, pixels', (128, 256, 512, 1024), (16, 32, 64),
                           _source_size, {IMAGE: 2 * LINEAR}),
    'image_size': Subject('side of the images trained on, pixels', (32, 64, 128, 256),
                          (18, 20, 24), _image_size,
                          {FIRST_STEP: 2 * LINEAR, STEP: 2 * LINEAR, PEAK: 2 * LINEAR}),
    'batch_size': Subject('batch size', (16, 64, 256, 1024), (2, 4, 8), _batch_size,
                          {FIRST_STEP: LINEAR, STEP: LINEAR, PEAK: LINEAR}),
    'steps': Subject('steps', (1000, 4000, 16000), (20, 40, 80), _steps, {STEP: FLAT, PEAK: FLAT}),
    'replicas': Subject('CPU replicas, one global batch', (1, 2, 4, 8, 16), (1, 2), _replicas,
                        {FIRST_STEP: LINEAR, STEP: NEARLY_FLAT, PEAK: NEARLY_FLAT}),
}

if __name__ == '__main__':
  common.exit_with(main)
