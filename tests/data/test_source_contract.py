"""What every source of examples keeps to: order, resuming, shards, evaluation, damage, and keys.

The examples are numbered: the pixels of number n are 10 * n, and its class index is n % 3.
"""

import collections
import contextlib
import io
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of, write_records
from PIL import Image

from estimator_train import data
from estimator_train.data import DataSet, binary_files, records, run_data
from estimator_train.data.batching import Batching
from estimator_train.data.sharding import ExampleOrder, Shard
from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.settings.flags import InputFlags

COUNT, SHAPE, LABELS = 21, (2, 3, 1), ('a', 'b', 'c')
BATCHING = Batching(SHAPE, len(LABELS), one_hot=False, examples_per_batch=4, shuffle_buffer=5,
                    num_parallel_calls=2)
# By --seed=1. An interrupted run must find the same order after an update of the program.
RANDOM_ORDER = [13, 14, 7, 5, 12, 8, 19, 0]
STREAMED_ORDER = [0, 2, 5, 4, 1, 6, 9, 10]
STREAMED = ('idx_files', 'examples')


def parse(record):
  values = tf.io.parse_single_example(record, {
      'pixels': tf.io.FixedLenFeature([], tf.string),
      'label': tf.io.FixedLenFeature([], tf.int64)})
  return tf.reshape(tf.decode_raw(values['pixels'], tf.uint8), SHAPE), values['label']


def parse_batch(records):
  return tf.map_fn(parse, records, (tf.uint8, tf.int64))


def png(number):
  content = io.BytesIO()
  Image.new('L', (3, 2), 10 * int(number)).save(content, 'PNG')
  return content.getvalue()


def raw_record(number, label):
  return tf.train.Example(features=tf.train.Features(feature={
      'pixels': tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([10 * number]) * 6])),
      'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
  })).SerializeToString()


def write_in_files(folder, records, per_file):
  paths = [folder / 'train-{:02d}'.format(index) for index in range(-(-len(records) // per_file))]
  for index, path in enumerate(paths):
    write_records(path, records[index * per_file:(index + 1) * per_file])
  return paths


def read_binary(paths):
  """Reads a file of examples: the class index, and the pixels."""
  content = np.fromfile(paths[0], np.uint8)
  if content.size % 7:
    raise UserError('a file is truncated', paths[0], 'write it again')
  content = content.reshape(-1, 7)
  return content[:, 1:].reshape((-1,) + SHAPE), content[:, 0]


Made = collections.namedtuple('Made', 'source, paths')  # A source, and the files of its examples.


@pytest.fixture
def make(tmp_path, write_idx):
  """Makes a source of a kind; the same arguments make the same files anew."""
  def make(kind, folder='data', count=COUNT, per_file=7, shift=0):
    folder, numbers = tmp_path / folder, np.arange(count) % COUNT
    folder.mkdir(exist_ok=True)
    classes, paths = (numbers + shift) % len(LABELS), []
    images = np.broadcast_to(10 * numbers[:, None, None, None], (count,) + SHAPE).astype(np.uint8)
    if kind == 'idx_files':
      paths = [folder / name for name in ('images.gz', 'labels.gz')]
      for made, path in zip(write_idx(images[..., 0], classes), paths):
        os.rename(made, str(path))
      split = data.IdxSplit(*map(str, paths))
    elif kind == 'binary_files':
      paths = [folder / 'examples.bin']
      paths[0].write_bytes(b''.join(bytes([label]) + bytes(image.ravel())
                                    for label, image in zip(classes, images)))
      split = data.BinarySplit((str(paths[0]),), read_binary)
    elif kind == 'image_files':
      paths = [folder / '{:02d}.png'.format(number) for number in range(count)]
      for path, number in zip(paths, numbers):
        path.write_bytes(png(number))
      split = data.ImageSplit([bytes(path) for path in paths], classes.astype(np.int32))
    elif kind == 'image_records':
      paths = write_in_files(folder, [record_of(png(number), label) for number, label in zip(
          numbers, classes)], per_file)
      split = data.ImageRecordSplit(records.load_index(tuple(map(bytes, paths))))
    elif kind in ('records', 'parse_batch', 'examples'):
      paths = write_in_files(folder, list(map(raw_record, numbers, classes)), per_file)
      if kind == 'examples':
        split = data.ExampleSplit(lambda: tf.data.TFRecordDataset(
            [str(path) for path in paths]).map(parse), count)
      else:
        split = data.ParsedRecordSplit(
            records.load_index(tuple(map(bytes, paths))),
            *((parse, None) if kind == 'records' else (None, parse_batch)))
    else:
      split = (data.ArraySplit(images, classes) if kind == 'arrays'
               else data.SyntheticSplit(None))
    return Made(run_data.make_source(DataSet('any', LABELS, SHAPE, split), split), paths)

  return make


KINDS = ('idx_files', 'binary_files', 'image_files', 'image_records', 'records', 'parse_batch',
         'examples', 'arrays', 'synthetic')
FINITE = KINDS[:-1]
MADE_BY_FUNCTIONS = ('records', 'parse_batch', 'examples')
WITH_FILES = KINDS[:-2]
CACHED = [(kind, cache) for kind in WITH_FILES for cache in ('none', 'memory')] + [
    ('image_files', 'folder'), ('arrays', 'none')]


def numbers_of(found):
  """Returns the numbers of the examples in batches, whose labels and pixels must be theirs."""
  numbers = []
  for pixels, labels in found:
    of_batch = pixels[:, 0, 0, 0].astype(int) // 10
    assert (pixels == 10 * of_batch[:, None, None, None]).all() and pixels.shape[1:] == SHAPE
    assert (labels == of_batch % len(LABELS)).all() and labels.dtype == np.int64
    numbers.extend(of_batch.tolist())
  return numbers


@pytest.fixture
def train(make, tmp_path):
  """Returns the numbers of the examples in the first batches of training."""
  def train(kind, cache, num_batches, **given):
    if cache == 'folder':
      cache = str(tmp_path / 'cache')
    found, graph = batches(make(kind).source.make_train_input_fn(
        BATCHING._replace(**given), cache), num_batches)
    assert {len(labels) for _, labels in found} == {given.get('examples_per_batch', 4)}
    assert graph.as_graph_def().ByteSize() < 30000  # No examples and no paths of files.
    return numbers_of(found)

  return train


@pytest.mark.parametrize('kind', FINITE)
def test_evaluation_has_each_example_once_in_order(make, kind):
  source, paths = make(kind)
  assert source.check_and_count() == COUNT
  assert source.class_indices().tolist() == [number % 3 for number in range(COUNT)]
  assert source.files() in ([], [str(path) for path in paths], [bytes(path) for path in paths])
  found, _ = batches(source.make_eval_input_fn(BATCHING))
  assert numbers_of(found) == list(range(COUNT))
  assert [len(labels) for _, labels in found] == 5 * [4] + [1]
  ((_, labels),), _ = batches(source.make_eval_input_fn(BATCHING._replace(one_hot=True)), 1)
  assert labels.dtype == np.float32 and labels.tolist() == np.eye(3)[[0, 1, 2, 0]].tolist()


@pytest.mark.parametrize('kind, cache', CACHED)
def test_training_has_each_example_once_an_epoch(train, kind, cache):
  seen = train(kind, cache, 16)
  assert seen[:8] == (STREAMED_ORDER if kind in STREAMED else RANDOM_ORDER)
  epochs = [seen[start:start + COUNT] for start in range(0, 3 * COUNT, COUNT)]
  assert [sorted(epoch) for epoch in epochs] == 3 * [list(range(COUNT))]
  assert len(set(map(tuple, epochs))) == 3
  assert train(kind, cache, 4, examples_per_batch=2, num_parallel_calls=1, prefetch=3) == seen[:8]
  assert train(kind, cache, 2, seed=2) != seen[:8]


@pytest.mark.parametrize('kind, cache', CACHED)
def test_resuming_and_shards(train, kind, cache):
  """Workers read together what one process would, and each can resume."""
  batch_size, replicas, workers, steps = 2, 2, 3, 3
  first = 10 ** 9 * COUNT + 5  # To read the epochs before would take minutes.
  of_one = np.reshape(train(kind, cache, steps * workers * replicas, examples_per_batch=batch_size,
                            shard=Shard(first)), (steps, workers, -1))
  assert len(set(of_one.ravel()[:COUNT - 5])) == COUNT - 5  # The rest of an epoch.
  for rank in range(workers):
    resumed = min(rank, 1)
    shard = Shard(first + resumed * of_one[0].size, workers, rank, batch_size * replicas)
    own = train(kind, cache, (steps - resumed) * replicas, examples_per_batch=batch_size,
                shard=shard)
    assert own == of_one[resumed:, rank].ravel().tolist()


@pytest.mark.parametrize('kind, cache', [pair for pair in CACHED if pair[0] != 'examples'])
def test_classes_are_read_equally_often(train, kind, cache):
  """Also by several workers that resume."""
  classes = np.array([0] * 17 + [1] * 4)
  seen = np.reshape(train(kind, cache, 21, examples_per_batch=3, class_indices=classes), (3, -1))
  for epoch in seen:
    counts = np.bincount(classes[epoch])
    assert sorted(counts) == [10, 11] and len(set(epoch[classes[epoch] == 0])) == counts[0]
    assert set(np.bincount(epoch)[17:]) <= {2, 3}
  assert len(set(map(tuple, seen))) == 3
  own = train(kind, cache, 4, examples_per_batch=3, class_indices=classes, shard=Shard(5, 2, 1, 6))
  assert own == seen.ravel()[[*range(11, 17), *range(23, 29)]].tolist()


@pytest.mark.parametrize('kind, cache', [
    pair for pair in CACHED if pair[0] not in MADE_BY_FUNCTIONS])
def test_augmented_examples(make, tmp_path, kind, cache):
  """On any worker, and resumed, those of their positions; images of one color get brighter."""
  source = make(kind).source
  batching = BATCHING._replace(augment='color', shard=Shard(40, 2, 1, 4), one_hot=True, seed=3)
  cache = str(tmp_path / 'cache') if cache == 'folder' else cache
  plain, _ = batches(source.make_train_input_fn(batching._replace(augment='none'), cache), 3)
  found, _ = batches(source.make_train_input_fn(batching, cache), 3)
  for batch, (pixels, labels) in enumerate(found):
    with tf.Graph().as_default(), tf.Session() as session:
      factors = session.run(tf.stack([
          .6 + .8 * tf.random.stateless_uniform([26], [3, 44 + 8 * batch + example])[25]
          for example in range(4)]))
    expected = plain[batch][0] * factors[:, np.newaxis, np.newaxis, np.newaxis]
    np.testing.assert_allclose(pixels, expected.clip(0, 255), rtol=1e-4)
    np.testing.assert_array_equal(labels, plain[batch][1])
  evaluated, _ = batches(source.make_eval_input_fn(batching._replace(one_hot=False)))
  assert numbers_of(evaluated) == list(range(COUNT))


@pytest.mark.parametrize('kind', ['image_files', 'image_records', 'records', 'parse_batch'])
def test_a_worker_reads_no_file_of_another(make, kind):
  """Of 512 files two workers read half each in an epoch, and few ahead."""
  source, paths = make(kind, count=512, per_file=1)
  shard = Shard(0, 2, 1, 4)
  own = ExampleOrder(512, 1, shard).indices(0, 256)
  for number in set(range(512)) - set(own):
    paths[number].write_bytes(b'')
  found, _ = batches(source.make_train_input_fn(BATCHING._replace(shard=shard), 'none'), 5)
  assert numbers_of(found) == (own[:20] % COUNT).tolist()


@pytest.mark.parametrize('kind, message', [
    ('idx_files', 'wrong length: .*images.gz: .* truncated'),
    ('binary_files', 'a file is truncated: .*examples.bin'),
    ('image_files', 'an image cannot be decoded: .*/00.png .Invalid PNG data'),
    ('image_records', r'an example cannot be read: .*/train-00: record 6 \(truncated\): repair'),
    ('records', r'an example cannot be read: .*/train-00: record 6 \(truncated\)'),
    ('examples', 'a file of the data set .* is damaged: truncated record at')])
def test_a_damaged_example_is_named_or_skipped(make, tmp_path, kind, message):
  source, paths = make(kind)
  os.truncate(str(paths[0]), paths[0].stat().st_size - 18)
  for make_input_fn in (source.make_eval_input_fn,
                        lambda batching: source.make_train_input_fn(batching, 'none')):
    with pytest.raises(UserError, match=message), translate_errors(source):
      source.check_and_count()
      batches(make_input_fn(BATCHING), 12)
  dataset, skipped = run_data.skip_bad_examples(source.dataset, InputFlags(max_bad_images=.05),
                                                str(tmp_path))
  assert len(skipped) == kind.startswith('image') and all(
      image.file.startswith(str(paths[0])) for image in skipped)
  if skipped:
    rest = run_data.make_source(dataset, dataset.train)
    assert rest.check_and_count() == len(rest.class_indices()) == COUNT - 1
    found, _ = batches(rest.make_eval_input_fn(BATCHING))
    assert numbers_of(found) == [number for number in range(COUNT)
                                 if number != (0 if kind == 'image_files' else 6)]
    assert rest.cache_key() != source.cache_key()


@pytest.mark.parametrize('kind', KINDS)
def test_keys_of_the_content(make, kind):
  """A cache's key changes with a file; workers compare digests, whatever their folders."""
  source, paths = make(kind)
  digest = source.digest_of_examples()
  assert digest == make(kind, 'copy').source.digest_of_examples()
  assert bool(digest) == (kind not in ('examples', 'synthetic'))
  if digest:
    assert digest != make(kind, 'fewer', count=20).source.digest_of_examples()
  if kind in ('idx_files', 'binary_files', 'image_files', 'arrays'):
    assert digest != make(kind, 'other', shift=1).source.digest_of_examples()
  if kind in ('examples', 'synthetic'):
    with pytest.raises(UserError, match='--cache_features require'):
      (source.cache_key if kind == 'examples' else source.class_indices)()
    return
  key = source.cache_key()
  assert key == source.cache_key()
  for path in paths:
    os.utime(str(path), ns=(1, 1))
    assert source.cache_key() != key
    key = source.cache_key()
  if not paths:
    assert make(kind).source.cache_key() == key != make(kind, shift=1).source.cache_key()
  # Each worker has compared published files with the checksums.
  if kind in ('idx_files', 'binary_files'):
    source.dataset = source.dataset._replace(files=(data.DataFile('any', 1, '', ()),))
    assert source.digest_of_examples() == ''


def test_binary_files_of_another_data_set(make):
  source = make('binary_files').source
  for changed in ({'image_shape': (3, 2, 1)}, {'labels': ('a', 'b')}):
    source.dataset = make('binary_files').source.dataset._replace(**changed)
    with pytest.raises(UserError, match=r'images of shape \(21, 2, 3, 1\), classes up to 2: give'):
      source.check_and_count()


def test_synthetic_examples_are_one_batch_again_and_again(make):
  source = make('synthetic').source
  assert source.check_and_count() is None
  with pytest.raises(UserError, match='require a finite data set'):
    source.class_indices()
  batching = BATCHING._replace(image_shape=(16, 15, 1))
  for input_fn in (source.make_train_input_fn(batching, 'none'),
                   source.make_eval_input_fn(batching)):
    ((pixels, labels), (again, same_labels)), _ = batches(input_fn, 2)
    assert pixels.shape == (4, 16, 15, 1) and pixels.dtype == np.uint8
    assert 0 <= pixels.min() < 20 and 235 < pixels.max() <= 255
    assert set(labels) <= {0, 1, 2} and labels.tolist() == same_labels.tolist()
    np.testing.assert_array_equal(pixels, again)


def test_small_idx_files_are_cached_by_default(make, monkeypatch):
  source = make('idx_files').source
  for given, small_bytes, cache in (('auto', COUNT * 6, 'memory'), ('auto', COUNT * 6 - 1, 'none'),
                                    ('memory', 0, 'memory')):
    monkeypatch.setattr(binary_files, '_MAX_AUTO_CACHED_BYTES', small_bytes)
    settings = Settings(model_dir='any', train_steps=1, cache=given, batch_size=4)
    assert run_data.resolve_cache(source, settings) == cache
    assert run_data.resolve_cache(make('image_files').source, settings) == (
        'none' if given == 'auto' else given)


@pytest.mark.parametrize('kind', FINITE)
def test_what_only_images_support(make, kind):
  settings = Settings(model_dir='any', train_steps=1, mode='train', class_sampling='balanced')
  with contextlib.ExitStack() as stack:
    if kind == 'examples':
      stack.enter_context(pytest.raises(UserError, match='only be read in its own order'))
    run_data.open_data(make(kind).source.dataset, settings, 'unused')
  dataset, is_image = make(kind).source.dataset, kind.startswith('image')
  for flag, message in (({'cache': 'folder'}, 'only image files can be cached in a folder'),
                        ({'augment': 'flip'}, 'examples of a function .* cannot be augmented')):
    settings = Settings(model_dir='any', train_steps=1, mode='train', **flag)
    if is_image or ('augment' in flag and kind not in MADE_BY_FUNCTIONS):
      assert run_data.open_data(dataset, settings, 'unused').train.num_examples == COUNT
    else:
      with pytest.raises(UserError, match=message):
        run_data.open_data(dataset, settings, 'unused')
  if not is_image:
    with pytest.raises(UserError, match='published requires image files or TFRecord files'):
      make(kind).source.make_published_input_fn(BATCHING)


@pytest.mark.parametrize('kind', ['image_files', 'image_records'])
def test_the_published_pipeline(make, kind):
  """The stages of 2018, each example once a pass, and another order in a resumed run."""
  def read(num_batches, **given):
    found, graph = batches(make(kind).source.make_published_input_fn(BATCHING._replace(**dict(
        {'image_shape': (2, 3, 3), 'examples_per_batch': 7, 'shuffle_buffer': 99}, **given))),
                           num_batches)
    assert all(pixels.shape[3] == 3 for pixels, _ in found)
    return numbers_of([(np.rint(pixels[..., 1:2]), labels) for pixels, labels in found]), graph

  seen, graph = read(6)
  assert sorted(seen[:COUNT]) == sorted(seen[COUNT:]) == list(range(COUNT))
  assert seen[:COUNT] != seen[COUNT:]
  ops = ' '.join(node.op for node in graph.as_graph_def().node)
  assert all(op + 'Dataset' in ops for op in ('ShuffleAndRepeat', 'MapAndBatch', 'Prefetch'))
  if kind == 'image_files':  # The readers of records run in parallel.
    assert read(3)[0] == seen[:COUNT]
  resumed, _ = read(3, shard=Shard(first_example=6))
  assert resumed != seen[:COUNT] and sorted(resumed) == list(range(COUNT))
  shards = [set(read(7, examples_per_batch=1, shard=Shard(0, 2, rank, 1))[0]) for rank in (0, 1)]
  assert len(shards[0]) == len(shards[1]) == 7 and not shards[0] & shards[1]
  if kind == 'image_records':
    with pytest.raises(UserError, match=r'requires a file per worker: 3 file\(s\) for 4 workers: '):
      read(1, shard=Shard(0, 4, 0, 1))
