"""How fast TFRecord files are read, compared with the input stages of 2018 and with other inputs.

  python tests/benchmarks/record_input.py --train_pattern='DATA/train/*/*.jpeg' [NAME...]
      [--repeats=5] [--records=1000000] [--quick]

NAME is one of SUBJECTS, all if there is none. The images of the pattern, one folder per class, are
written to seven TFRecord files in a temporary folder. The sides of a subject run in turn, in one
process, `--repeats` times; the result is the ratio of their medians. `cold` evicts all files from
the page cache before each side. `fill` measures the whole first epoch with and without a cache,
from making the input to the last batch, files evicted. `resume` compares the time until the first
batch at nine tenths of the records with the time of reading up to it in the stages of 2018. --quick
uses few records: its figures are meaningless.
"""

import functools
import glob
import gzip
import json
import os
import statistics
import struct
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple
from unittest import mock

import common
import image_yardsticks
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import (
  DataSpec,
  IdxSplit,
  ImageRecordSplit,
  ImageSplit,
  ParsedRecordSplit,
  Role,
  record_index as records_lib,
)
from estimator_train.data.batching import BatchSettings, OrderSettings, PixelSettings
from estimator_train.data.opening import make_source
from estimator_train.data.order import Shard
from estimator_train.data.source import InputFn
from estimator_train.system import machine, storage

IMAGE_SIZE, BATCH_SIZE, SHARDS, MANY_SHARDS = (224, 224), 32, 7, 10000
SMALL_SHAPE, SMALL_BATCH_SIZE = (28, 28, 1), 256
SMALL_FEATURES = {'image': tf.io.FixedLenFeature([], tf.string),
                  'label': tf.io.FixedLenFeature([], tf.int64)}
IMAGE_FEATURES = {'image/encoded': tf.io.FixedLenFeature([], tf.string),
                  'image/class/label': tf.io.FixedLenFeature([], tf.int64)}


class Ratio(NamedTuple):
  """A ratio of two sides. The medians are rates, or seconds if `is_secs`."""
  title: str
  over: str
  under: str
  target: float


class Subject(NamedTuple):
  """What is compared: functions that return a rate (or seconds), and the ratios."""
  sides: Dict[str, Callable[[], float]]
  ratios: Sequence[Ratio]
  unit: str


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(SUBJECTS))
  parser.add_argument('--train_pattern', required=True, help='image files, one folder per class')
  parser.add_count('--repeats', 5, 'measurements of each side')
  parser.add_count('--records', 1000000, 'small records')
  parser.add_argument('--quick', action='store_true', help='few records, one repetition')
  args = parser.parse_args()
  unknown = [name for name in args.names if name not in SUBJECTS]
  files = sorted(glob.glob(args.train_pattern, recursive=True))
  if unknown or not files:
    parser.error('no such subject: {}'.format(', '.join(unknown)) if unknown
                 else 'no file matches --train_pattern=' + args.train_pattern)
  if args.quick:
    args.repeats, args.records, files = 1, 5000, files[:BATCH_SIZE * 4]
  machine = common.machine()
  machine.tune_for_cpu_training()
  tf.logging.set_verbosity(tf.logging.ERROR)
  with tempfile.TemporaryDirectory(prefix='record_input-') as folder:
    data = Data(folder, files, args.records)
    rows = [row for name in args.names or SUBJECTS
            for row in _measure(name, SUBJECTS[name](data), args.repeats)]
  print(common.machine_line(machine) + '\n')
  for row in rows:
    print('{subject:8} {title:55} {ratio:7.2f}  (target {target})  {medians}'.format(**row))
  print(json.dumps({'machine': machine, 'repeats': args.repeats, 'records': args.records,
                    'rows': rows}))


def _measure(name: str, subject: Subject, repeats: int) -> List[Dict[str, Any]]:
  values: Dict[str, List[float]] = {side: [] for side in subject.sides}
  for _ in range(repeats):
    for side, measure in subject.sides.items():
      values[side].append(measure())
  medians = {side: statistics.median(found) for side, found in values.items()}
  return [{'subject': name, 'title': ratio.title, 'target': ratio.target,
           'ratio': medians[ratio.over] / medians[ratio.under],
           'pairs': sorted(over / under for over, under in zip(values[ratio.over],
                                                               values[ratio.under])),
           'medians': {side: '{:.4g} {}'.format(medians[side], subject.unit)
                       for side in (ratio.over, ratio.under)}} for ratio in subject.ratios]


class Data:
  """The files of a run, written when they are first used.

  Args:
    folder: an empty folder.
    files: image files, one folder per class.
    num_small: the number of small records.
  """

  def __init__(self, folder: str, files: Sequence[str], num_small: int) -> None:
    self.folder, self.num_small = folder, num_small
    self.labels = tuple(sorted({os.path.basename(os.path.dirname(path)) for path in files}))
    self.files = [os.fsencode(path) for path in files]
    self.classes = np.array([self.labels.index(os.path.basename(os.path.dirname(path)))
                             for path in files], np.int32)

  def dataset(self, shape: Tuple[int, int, int], split: Any) -> Any:
    """Returns the source of a split."""
    return make_source(split, DataSpec('any', self.labels, shape), Role.TRAIN)

  @functools.lru_cache(maxsize=None)  # noqa: B019
  def image_source(self) -> Any:
    return self.dataset(IMAGE_SIZE + (3,), ImageSplit(self.files, self.classes))

  @functools.lru_cache(maxsize=None)  # noqa: B019
  def record_source(self) -> Any:
    contents = [self.image_source().read_content(index) for index in range(len(self.files))]
    records = (_example({'image/encoded': content}, {'image/class/label': int(label)})
               for content, label in zip(contents, self.classes))
    return self.dataset(IMAGE_SIZE + (3,), ImageRecordSplit(self.write('images', records,
                                                                        len(self.files))))

  @functools.lru_cache(maxsize=None)  # noqa: B019
  def small_index(self) -> records_lib.RecordIndex:
    random = np.random.RandomState(1)
    pixels = random.randint(0, 256, (1000, 784)).astype(np.uint8)
    records = (_example({'image': pixels[number % 1000].tobytes()}, {'label': number % 10})
               for number in range(self.num_small))
    return self.write('small', records, self.num_small)

  def write(self, name: str, records: Any, count: int) -> records_lib.RecordIndex:
    """Writes records to TFRecord files, and returns their positions."""
    paths = [os.path.join(self.folder, '{}-{}'.format(name, shard)) for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
      with tf.io.TFRecordWriter(path) as writer:
        for _ in range(count * shard // SHARDS, count * (shard + 1) // SHARDS):
          writer.write(next(records))
    return records_lib.load_or_scan_index(tuple(map(os.fsencode, paths)))


def _example(contents: Dict[str, bytes], labels: Dict[str, int]) -> bytes:
  features = {key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
              for key, value in contents.items()}
  features.update({key: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                   for key, value in labels.items()})
  return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _plan(shape: Tuple[int, int, int], batch_size: int,
          first_example: int = 0) -> Tuple[OrderSettings, PixelSettings, BatchSettings]:
  return (OrderSettings(shard=Shard(first_example), shuffle_buffer=2048), PixelSettings(shape),
          BatchSettings(batch_size, 10, False, num_parallel_calls=machine.available_cores(),
                        prefetch=2))


def _rate(input_fn: InputFn, batches: int, batch_size: int, evicted: Sequence[Any] = ()) -> float:
  """Returns examples/s after the first batch, which fills the buffers."""
  storage.advise_kernel(evicted, os.POSIX_FADV_DONTNEED)
  with tf.Graph().as_default(), tf.Session() as session:
    iterator = tf.data.make_initializable_iterator(input_fn())
    take = session.make_callable(tf.group(*tf.nest.flatten(iterator.get_next())))
    session.run(iterator.initializer)
    take()
    began = time.perf_counter()
    for _ in range(batches):
      take()
    return batches * batch_size / (time.perf_counter() - began)


def _secs_until_batch(input_fn: InputFn, number: int) -> float:
  """Returns the seconds from building the input until a batch is there."""
  began = time.perf_counter()
  with tf.Graph().as_default(), tf.Session() as session:
    iterator = tf.data.make_initializable_iterator(input_fn())
    take = session.make_callable(tf.group(*tf.nest.flatten(iterator.get_next())))
    session.run(iterator.initializer)
    for _ in range(number + 1):
      take()
  return time.perf_counter() - began


def _chain_of_2018(files: Sequence[bytes], parse: Any, batch_size: int) -> tf.data.Dataset:
  return (tf.data.Dataset.from_tensor_slices(np.array(files, object)).shuffle(len(files))
          .apply(tf.data.experimental.parallel_interleave(tf.data.TFRecordDataset, SHARDS))
          .apply(tf.data.experimental.shuffle_and_repeat(2048))
          .apply(tf.data.experimental.map_and_batch(
              parse, batch_size, num_parallel_calls=machine.available_cores()))
          .prefetch(2))


def _parse_image(record: tf.Tensor) -> Any:
  values = tf.io.parse_single_example(record, IMAGE_FEATURES)
  image = tf.image.decode_jpeg(values['image/encoded'], channels=3)
  image = tf.image.convert_image_dtype(image, tf.float32)
  return tf.image.resize_images(image, IMAGE_SIZE), values['image/class/label']


def _parse_small(record: tf.Tensor) -> Any:
  values = tf.io.parse_single_example(record, SMALL_FEATURES)
  return tf.reshape(tf.decode_raw(values['image'], tf.uint8), SMALL_SHAPE), values['label']


def _parse_small_batch(records: tf.Tensor) -> Any:
  values = tf.io.parse_example(records, SMALL_FEATURES)
  return (tf.reshape(tf.decode_raw(values['image'], tf.uint8), (-1,) + SMALL_SHAPE),
          values['label'])


def _cold(data: Data) -> Subject:
  plan = _plan(IMAGE_SIZE + (3,), BATCH_SIZE)
  records, files = data.record_source(), data.image_source()
  contents = [files.read_content(index) for index in range(len(data.files))]
  evicted = list(records.list_files()) + list(files.list_files())
  batches = max(1, len(data.files) // BATCH_SIZE - 1)
  measure = functools.partial(_rate, batches=batches, batch_size=BATCH_SIZE, evicted=evicted)
  return Subject({
      'records': lambda: measure(records.make_train_input_fn(*plan, 'none')),
      'chain of 2018': lambda: measure(lambda: _chain_of_2018(records.list_files(), _parse_image,
                                                              BATCH_SIZE)),
      'image folder': lambda: measure(files.make_train_input_fn(*plan, 'none')),
      'decoding from memory': lambda: measure(
          image_yardsticks.make_decoding_from_memory(contents, IMAGE_SIZE, BATCH_SIZE)),
  }, (Ratio('JPEG records, cold, of the chain of 2018', 'records', 'chain of 2018', 2.5),
      Ratio('JPEG records, cold, of the image folder', 'records', 'image folder', 1.),
      Ratio('JPEG records, cold, of decoding from memory', 'records', 'decoding from memory',
            .95)), 'images/s')


def _small(data: Data) -> Subject:
  index = data.small_index()
  source = data.dataset(SMALL_SHAPE, ParsedRecordSplit(index, None, _parse_small_batch))
  plan = _plan(SMALL_SHAPE, SMALL_BATCH_SIZE)
  batches = max(1, min(data.num_small, 50000) // SMALL_BATCH_SIZE - 1)
  measure = functools.partial(_rate, batches=batches, batch_size=SMALL_BATCH_SIZE)
  return Subject({
      'records': lambda: measure(source.make_train_input_fn(*plan, 'none')),
      'chain of 2018': lambda: measure(lambda: _chain_of_2018(index.files, _parse_small,
                                                              SMALL_BATCH_SIZE)),
  }, (Ratio('small records, of per-record parsing', 'records', 'chain of 2018', 5.),),
      'examples/s')


def _resume(data: Data) -> Subject:
  index = data.small_index()
  small = data.dataset(SMALL_SHAPE, ParsedRecordSplit(index, None, _parse_small_batch))
  first = data.num_small * 9 // 10
  records, count = data.record_source(), len(data.files)
  epochs = max(1, 10000 // count)  # As many images as in 10,000 different records.
  first_image = count * epochs * 9 // 10
  return Subject({
      'small, resumed': lambda: _secs_until_batch(small.make_train_input_fn(
          *_plan(SMALL_SHAPE, SMALL_BATCH_SIZE, first), 'none'), 0),
      'small, read': lambda: _secs_until_batch(
          lambda: _chain_of_2018(index.files, _parse_small, SMALL_BATCH_SIZE),
          first // SMALL_BATCH_SIZE),
      'JPEG, resumed': lambda: _secs_until_batch(records.make_train_input_fn(
          *_plan(IMAGE_SIZE + (3,), BATCH_SIZE, first_image), 'none'), 0),
      'JPEG, read': lambda: _secs_until_batch(
          lambda: _chain_of_2018(records.list_files(), _parse_image, BATCH_SIZE),
          first_image // BATCH_SIZE),
  }, (Ratio('small records, reading up to nine tenths', 'small, read', 'small, resumed', 20.),
      Ratio('JPEG records, reading up to nine tenths', 'JPEG, read', 'JPEG, resumed', 20.)), 's')


def _cached(data: Data) -> Subject:
  records = data.record_source()
  plan = _plan(IMAGE_SIZE + (3,), BATCH_SIZE)
  cached_input_fn = records.make_train_input_fn(*plan, 'memory')
  measure = functools.partial(_rate, batch_size=BATCH_SIZE)
  return Subject({
      'memory cache': lambda: measure(cached_input_fn, 500),
      'chain of 2018': lambda: measure(lambda: _chain_of_2018(
          records.list_files(), _parse_image, BATCH_SIZE),
                               max(1, len(data.files) // BATCH_SIZE - 1)),
  }, (Ratio('--cache=memory, of the chain of 2018', 'memory cache', 'chain of 2018', 50.),),
      'images/s')


def _fill(data: Data) -> Subject:
  """The whole first epoch of cold files, from making the input to the last batch."""
  records = data.record_source()
  plan = _plan(IMAGE_SIZE + (3,), BATCH_SIZE)
  batches = max(1, len(data.files) // BATCH_SIZE)
  caches = {'memory': lambda: 'memory', 'folder': lambda: tempfile.mkdtemp(dir=data.folder)}

  def measure(make_cache: Callable[[], str]) -> float:
    cache = make_cache()
    os.sync()  # Pages that are still to be written cannot be evicted.
    storage.advise_kernel(records.list_files(), os.POSIX_FADV_DONTNEED)

    def input_fn() -> tf.data.Dataset:
      return records.make_train_input_fn(*plan, cache)()

    secs = _secs_until_batch(input_fn, batches - 1)
    return batches * BATCH_SIZE / secs

  return Subject(
      {'none': functools.partial(measure, lambda: 'none'),
       **{name: functools.partial(measure, make) for name, make in caches.items()}},
      tuple(Ratio('JPEG records, first epoch, --cache={}, of no cache'.format(name), name, 'none',
                  .95) for name in caches), 'images/s')


def _shards(data: Data) -> Subject:
  """JPEG records in very many TFRecord files, one record each, and in seven files."""
  count = MANY_SHARDS if len(data.files) > MANY_SHARDS // 20 else len(data.files)
  contents = [data.image_source().read_content(index) for index in range(len(data.files))]
  paths = [os.path.join(data.folder, 'many-{}'.format(shard)) for shard in range(count)]

  def records() -> Iterator[bytes]:
    return (_example({'image/encoded': contents[number % len(contents)]}, {'image/class/label': 0})
            for number in range(count))

  for path, record in zip(paths, records()):
    with tf.io.TFRecordWriter(path) as writer:
      writer.write(record)
  few, many = (data.dataset(IMAGE_SIZE + (3,), ImageRecordSplit(index)) for index in (
      data.write('few', records(), count), records_lib.load_or_scan_index(
          tuple(map(os.fsencode, paths)))))
  plan = _plan(IMAGE_SIZE + (3,), BATCH_SIZE)
  measure = functools.partial(_rate, batches=max(1, min(count, 3200) // BATCH_SIZE - 1),
                              batch_size=BATCH_SIZE)
  return Subject({
      'many files': lambda: measure(many.make_train_input_fn(*plan, 'none')),
      'seven files': lambda: measure(few.make_train_input_fn(*plan, 'none')),
  }, (Ratio('JPEG records in {:,} files, of seven files'.format(count), 'many files',
            'seven files', 1.),), 'images/s')


def _idx(data: Data) -> Subject:
  """Steps of mnist_dense on the same images, from idx files and from records."""
  pixels = np.random.RandomState(1).randint(0, 256, (10000, 784)).astype(np.uint8)
  labels = np.arange(10000) % 10
  paths = [os.path.join(data.folder, name) for name in ('idx-images.gz', 'idx-labels.gz')]
  for path, magic, array in ((paths[0], 0x803, pixels.reshape(-1, 28, 28)),
                             (paths[1], 0x801, labels)):
    with gzip.open(path, 'wb') as file:
      file.write(struct.pack('>{}I'.format(1 + array.ndim), magic, *array.shape)
                 + array.astype(np.uint8).tobytes())
  index = data.write('idx', (_example({'image': image.tobytes()}, {'label': int(label)})
                              for image, label in zip(pixels, labels)), 10000)
  sources = {'records': data.dataset(SMALL_SHAPE, ParsedRecordSplit(index, None,
                                                                    _parse_small_batch)),
             'idx files': data.dataset(SMALL_SHAPE, IdxSplit(*paths))}
  return Subject({
      name: functools.partial(_steps_per_sec, source) for name, source in sources.items()},
      (Ratio('steps/s of mnist_dense, of idx files', 'records', 'idx files', .9),), 'steps/s')


def _bytes(data: Data) -> Subject:
  """Bytes that each of two workers reads in an epoch, the positions of the records included."""
  records = data.record_source()
  total = sum(map(os.path.getsize, records.list_files()))
  return Subject({
      'first of two workers': lambda: _bytes_of_worker(records, 0),
      'second of two workers': lambda: _bytes_of_worker(records, 1),
      'half of the bytes': lambda: total / 2,
  }, tuple(Ratio('bytes of the {}, of half (at most)'.format(worker), worker, 'half of the bytes',
                 1.1) for worker in ('first of two workers', 'second of two workers')), 'bytes')


def _bytes_of_worker(source: Any, rank: int) -> float:
  read, counts = records_lib.PositionedFile.read, []

  def count(file: Any, offset: int, length: int) -> bytes:
    content: bytes = read(file, offset, length)
    counts.append(len(content))
    return content

  with mock.patch.object(records_lib.PositionedFile, 'read', count):
    for number, path in enumerate(source.list_files()):
      records_lib._scan_file(number, path)  # pylint: disable=protected-access
    order = OrderSettings(shard=Shard(0, 2, rank, 1))
    with tf.Graph().as_default(), tf.Session() as session:
      chunks = order.make_index_chunks(len(source), 1, source.is_sequential)
      following = tf.data.make_one_shot_iterator(
          source.make_references(chunks.take(len(source) // 2))).get_next()
      for _ in range(len(source) // 2):
        session.run(following)
  return float(sum(counts))


def _steps_per_sec(source: Any) -> float:
  from estimator_train.model import networks
  with tf.Graph().as_default(), tf.Session() as session:
    iterator = tf.data.make_initializable_iterator(source.make_train_input_fn(
        *_plan(SMALL_SHAPE, SMALL_BATCH_SIZE), 'none')())
    pixels, labels = iterator.get_next()
    outputs = networks.mnist_dense(SMALL_SHAPE, 10)(tf.cast(pixels, tf.float32) / 255.)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, outputs)
    train = session.make_callable(tf.train.GradientDescentOptimizer(.001).minimize(loss))
    session.run([iterator.initializer, tf.global_variables_initializer()])
    for _ in range(3):
      train()
    began = time.perf_counter()
    for _ in range(30):
      train()
    return 30 / (time.perf_counter() - began)


SUBJECTS = {'bytes': _bytes, 'cold': _cold, 'small': _small, 'idx': _idx, 'resume': _resume,
            'fill': _fill, 'cached': _cached, 'shards': _shards}

if __name__ == '__main__':
  main()
