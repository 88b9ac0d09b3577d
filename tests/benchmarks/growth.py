"""How costs grow with sizes: each is measured at three sizes or more, on a log-log line.

  python tests/benchmarks/growth.py [NAME...] [--repetitions=3] [--max_size=N] [--quick]

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
import shutil
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
EPOCH, EVALUATION, REPORT, PAGE = (
    's an epoch', 's an evaluation', 's for the report', 'MB of page')
CONNECTION, CHIEF, STOP, LOSS = (
    's to connect', "MB of the chief's", 's until all stop', 's until a loss is known')
# The folder that an own data set of these runs reads.
FOLDER_VARIABLE = 'ESTIMATOR_TRAIN_GROWTH_FOLDER'
# A cost that is flat, one that is so but for a little of each, and one that is linear, with room
# for noise: more of it between neighbours.
FLAT, NEARLY_FLAT, LINEAR = .05, .2, 1.05
_NEIGHBOURS = .15


LABELS = ('CNV', 'DME', 'DRUSEN', 'NORMAL')

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
  parser.add_count('--max_size', 10 ** 9, 'leave out greater sizes')
  parser.add_argument('--quick', action='store_true', help='one run at tiny sizes')
  args = parser.parse_args()
  unknown = [name for name in args.names if name not in SUBJECTS]
  if unknown:
    parser.error('no such subject: {}: choose from {}'.format(', '.join(unknown),
                                                              ', '.join(SUBJECTS)))
  machine = common.machine()
  common.warm_up(DEADLINE_SECS)
  found = [line for name in args.names or list(SUBJECTS)
           for line in _lines(name, args)]
  _report(machine, args, found)
  if not args.quick and not all(line['reached'] for line in found):
    sys.exit(1)


def _lines(name: str, args: Any) -> List[Dict[str, Any]]:
  """Measures a subject; returns a line of each figure."""
  subject, repetitions = SUBJECTS[name], 1 if args.quick else args.repetitions
  sizes = subject.tiny if args.quick else [
      size for size in subject.sizes if size <= args.max_size]
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
  return _figures(_run(['--mode=train', '--report_page=false', *flags], folder))


def _run(flags: Sequence[str], folder: str) -> common.PackageRun:
  here = Path(__file__).resolve().parent
  with tempfile.TemporaryDirectory(prefix='benchmark-') as cache:
    return common.run_package(['--num_gpus=0', *flags], DEADLINE_SECS, variables={
        'PYTHONPATH': os.pathsep.join(map(str, [common.ROOT, here.parent, here])),
        FOLDER_VARIABLE: folder, 'XDG_CACHE_HOME': cache})


def _figures(run: common.PackageRun) -> Dict[str, float]:
  return {FIRST_STEP: run.throughput['time_to_first_step_secs'],
          STEP: run.throughput['step_secs']['p50'], PEAK: run.child.peak_bytes / 1e6}


def _train_and_evaluate(flags: Sequence[str], folder: str = '') -> Dict[str, float]:
  """Trains for an epoch, evaluates, and reports; returns the seconds of each, and the peak."""
  run = _run(['--mode=train_and_evaluate', '--model=own_models:two_layers', '--train_epochs=1',
              '--batch_size=100', *flags], folder)
  figures = _figures(run)
  trained, evaluated, reported = map(
      run.child.secs_until, ('epoch 1/1', 'evaluation: ', 'finished at step'))
  return {FIRST_STEP: figures[FIRST_STEP], EPOCH: trained - figures[FIRST_STEP],
          EVALUATION: evaluated - trained, REPORT: reported - evaluated, PEAK: figures[PEAK]}


def _only(figures: Dict[str, float], *names: str) -> Dict[str, float]:
  return {name: figures[name] for name in names}


def _examples(size: int, folder: str) -> Dict[str, float]:
  rows = np.random.RandomState(0).randint(0, 256, (1000, 28 * 28), np.uint8)
  with gzip.open(os.path.join(folder, 'images.gz'), 'wb', 1) as file:
    file.write(struct.pack('>IIII', 0x803, size, 28, 28))
    for _ in range(size // len(rows)):
      file.write(rows.tobytes())
    file.write(rows[:size % len(rows)].tobytes())
  with gzip.open(os.path.join(folder, 'labels.gz'), 'wb', 1) as file:
    file.write(struct.pack('>II', 0x801, size) + bytes(number % 10 for number in range(size)))
  return _train_and_evaluate(['--dataset=growth:idx_files'], folder)


def idx_files() -> Any:
  """The data set of `_examples`, for `--dataset`."""
  from estimator_train import DataSet, IdxSplit
  split = IdxSplit(*[os.path.join(os.environ[FOLDER_VARIABLE], name + '.gz')
                     for name in ('images', 'labels')])
  return DataSet('grown', tuple('0123456789'), (28, 28, 1), split, split)


def _files(size: int, folder: str) -> Dict[str, float]:
  _make_names(folder, size, LABELS)
  return _train_on_folder(folder)


def _class_folders(size: int, folder: str) -> Dict[str, float]:
  _make_names(folder, max(20000, size), ['class-{:05d}'.format(index) for index in range(size)])
  return _train_on_folder(folder)


def _train_on_folder(folder: str) -> Dict[str, float]:
  pattern = os.path.join(folder, '**', '*.jpeg')
  return _train_and_evaluate(['--dataset=image_folder', '--image_size=8,8',
                              '--train_pattern=' + pattern, '--eval_pattern=' + pattern])


def _make_names(root: str, count: int, labels: Sequence[str]) -> None:
  """Makes ROOT/LABEL/NAME, about 70 characters in a temporary folder of the system's."""
  source: Optional[str] = None
  number = 0
  for index, label in enumerate(labels, 1):
    os.makedirs(os.path.join(root, label))
    while number < count * index // len(labels):
      name = '{}-{:09d}-{:06d}-{:02d}.jpeg'.format(label, number, number // 100, number % 100)
      source = _link(source, os.path.join(root, label, name))
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


def _records(size: int, folder: str) -> Dict[str, float]:
  image = os.path.join(folder, 'image.jpeg')
  _link(None, image)
  common.run_python(['-c', _MAKE_RECORDS, folder, str(size), image], DEADLINE_SECS)
  pattern = os.path.join(folder, '*.tfrecord')
  return _train_and_evaluate([
      '--dataset=tfrecord', '--image_size=8,8', '--labels=' + ','.join(LABELS),
      '--train_pattern=' + pattern, '--eval_pattern=' + pattern])


_MAKE_RECORDS = '''
import os, sys
import tensorflow.compat.v1 as tf
folder, size, image = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], 'rb').read()
examples = [tf.train.Example(features=tf.train.Features(feature={
    'image/encoded': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
    'image/class/label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
})).SerializeToString() for label in range(4)]
for part in range(8):
  with tf.io.TFRecordWriter(os.path.join(folder, '{}.tfrecord'.format(part))) as writer:
    for number in range(size * part // 8, size * (part + 1) // 8):
      writer.write(examples[number % 4])
'''


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
  run = _run(['--mode=train', '--dataset=fashion_mnist_sample', '--model=own_models:two_layers',
              '--batch_size=32', '--save_checkpoints_steps=1000',
              '--train_steps={}'.format(size)], '')
  return {**_only(_figures(run), STEP, PEAK), REPORT: _secs_after(run, size)}


def _evaluations(size: int, unused_folder: str) -> Dict[str, float]:
  run = _run(['--mode=train_and_evaluate', '--dataset=own_models:tiny_images', '--batch_size=20',
              '--model=own_models:two_layers', '--eval_every_steps=2', '--log_every_steps=1',
              '--train_steps={}'.format(2 * size + 1)], '')
  pauses = run.throughput['pauses']['evaluation']
  return {EVALUATION: pauses['secs'] / pauses['count'], REPORT: _secs_after(run, 2 * size + 1),
          PEAK: run.child.peak_bytes / 1e6}


def _secs_after(run: common.PackageRun, last_step: int) -> float:
  seconds = run.child.secs_until
  return seconds('finished at step') - seconds('step {0}/{0} '.format(last_step))


def _runs(size: int, folder: str) -> Dict[str, float]:
  """Compares copies of a run."""
  first = os.path.join(folder, 'run-0')
  common.run_python([
      '-m', 'estimator_train', '--mode=train_and_evaluate', '--dataset=fashion_mnist_sample',
      '--model=mnist_dense', '--batch_size=6', '--train_epochs=1', '--log_every_steps=1',
      '--num_gpus=0', '--model_dir=' + first], DEADLINE_SECS)
  folders = [os.path.join(folder, 'run-{}'.format(number)) for number in range(size)]
  for copy in folders[1:]:
    shutil.copytree(first, copy)
  return _report_on(folders, os.path.join(folder, 'comparison'))


def _resumes(size: int, folder: str) -> Dict[str, float]:
  """Reports on a run that has resumed after each 100 steps."""
  common.run_python(['-c', _MAKE_EVENTS, folder, str(size)], DEADLINE_SECS)
  return _report_on([folder], folder)


_MAKE_EVENTS = '''
import os, sys
import tensorflow.compat.v1 as tf
folder, size = sys.argv[1], int(sys.argv[2])
for number in range(size):
  writer = tf.summary.FileWriter(folder, filename_suffix='.{:06d}'.format(number))
  for step in range(100 * number + 1, 100 * number + 101):
    writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag='loss', simple_value=1.)]), step)
  writer.close()
'''


def _report_on(runs: Sequence[str], model_dir: str) -> Dict[str, float]:
  child = common.run_python(['-m', 'estimator_train', '--mode=report', '--runs=' + ','.join(runs),
                             '--model_dir=' + model_dir], DEADLINE_SECS)
  page = os.path.join(model_dir, 'report', 'index.html')
  return {REPORT: child.secs_until('wrote the page'), PEAK: child.peak_bytes / 1e6,
          PAGE: os.path.getsize(page) / 1e6}


def _tasks(size: int, unused_folder: str) -> Dict[str, float]:
  import control_plane
  stopped, lost = (control_plane.measure(size, is_lost) for is_lost in (False, True))
  # Shorter times depend on when a task looks for messages.
  return {CONNECTION: max(stopped['connect_secs'], .5), CHIEF: max(stopped['chief_mb'], 1.),
          STOP: max(stopped['stop_secs'], .2), LOSS: max(lost['lost_secs'], .1)}


def _replicas(size: int, unused_folder: str) -> Dict[str, float]:
  return _train(['--dataset=synthetic', '--model=fashion_cnn', '--image_size=28,28',
                 '--batch_size=256', '--num_cpu_replicas={}'.format(size), '--train_steps=40'])


PARTS = dict.fromkeys((FIRST_STEP, EPOCH, EVALUATION, REPORT, PEAK), LINEAR)
SUBJECTS: Dict[str, Subject] = {
    # The first three are cached in memory, the last one is streamed.
    'examples': Subject('examples in two gzipped files', (1000, 10000, 100000, 1000000),
                        (200, 400, 800), _examples, PARTS),
    'files': Subject('image files', (1000, 10000, 100000, 1000000), (200, 400, 800), _files, PARTS),
    'records': Subject('records in TFRecord files', (1000, 10000, 100000, 1000000),
                       (200, 400, 800), _records, PARTS),
    'classes': Subject('folders of classes, 20,000 images', (2, 10, 100, 1000, 10000),
                       (2, 3, 4), _class_folders, PARTS),
    'source_size': Subject('side of the image files, pixels', (128, 256, 512, 1024), (16, 32, 64),
                           _source_size, {IMAGE: 2 * LINEAR}),
    'image_size': Subject('side of the images trained on, pixels', (32, 64, 128, 256),
                          (18, 20, 24), _image_size,
                          {FIRST_STEP: 2 * LINEAR, STEP: 2 * LINEAR, PEAK: 2 * LINEAR}),
    'batch_size': Subject('batch size', (16, 64, 256, 1024), (2, 4, 8), _batch_size,
                          {FIRST_STEP: LINEAR, STEP: LINEAR, PEAK: LINEAR}),
    'steps': Subject('steps', (1000, 10000, 100000), (20, 40, 80), _steps,
                     {STEP: FLAT, REPORT: LINEAR, PEAK: FLAT}),
    'evaluations': Subject('evaluations of a run', (10, 100, 1000), (2, 3, 4), _evaluations,
                           {EVALUATION: FLAT, REPORT: LINEAR, PEAK: FLAT}),
    'resumes': Subject('resumes of a run', (10, 100, 1000), (2, 3, 4), _resumes,
                       {REPORT: LINEAR, PEAK: LINEAR, PAGE: FLAT}),
    'runs': Subject('compared runs', (2, 10, 100), (2, 3, 4), _runs,
                    {REPORT: LINEAR, PEAK: LINEAR, PAGE: LINEAR}),
    'tasks': Subject('tasks, without TensorFlow', (2, 4, 8, 16, 32, 64), (2, 3, 4), _tasks,
                     dict.fromkeys((CONNECTION, CHIEF, STOP, LOSS), LINEAR)),
    'replicas': Subject('CPU replicas, one global batch', (1, 2, 4, 8, 16), (1, 2), _replicas,
                        {FIRST_STEP: LINEAR, STEP: NEARLY_FLAT, PEAK: NEARLY_FLAT}),
}

if __name__ == '__main__':
  common.exit_with(main)
