"""What every source of examples keeps to: order, resuming, shards, evaluation, damage, and keys.

The examples are numbered: the pixels of number n are 10 * n, and its class index is n % 3.
"""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of, write_records
from generated_data import encoded, write_idx
from input_plans import plan
from PIL import Image

from estimator_train import data
from estimator_train.data import (
  DataSet,
  DataSpec,
  Role,
  opening,
  record_index,
  source as source_module,
)
from estimator_train.data.opening import make_source
from estimator_train.data.order import ExampleOrder, Shard
from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import InputFlags

COUNT, SHAPE, LABELS = 21, (2, 3, 1), ('a', 'b', 'c')
SPEC = DataSpec('any', LABELS, SHAPE)
PLAN = plan(SHAPE, len(LABELS), 4, shuffle_buffer=5, num_parallel_calls=2)
# By --seed=1. An interrupted run must find the same order after an update of the program.
RANDOM_ORDER = [13, 14, 7, 5, 12, 8, 19, 0]
STREAMED_ORDER = [0, 2, 5, 4, 1, 6, 9, 10]
STREAMED = ('idx_files', 'examples')


def parse(record):
  values = tf.io.parse_single_example(record, {
      'image/encoded': tf.io.FixedLenFeature([], tf.string),
      'image/class/label': tf.io.FixedLenFeature([], tf.int64)})
  return (tf.reshape(tf.decode_raw(values['image/encoded'], tf.uint8), SHAPE),
          values['image/class/label'])


def parse_batch(records):
  return tf.map_fn(parse, records, (tf.uint8, tf.int64))


def png(image):
  return encoded(Image.fromarray(image[..., 0]), 'PNG')


def write_in_files(folder, records, per_file):
  starts = range(0, len(records), per_file)
  paths = [folder / 'train-{:02d}'.format(start // per_file) for start in starts]
  for path, start in zip(paths, starts):
    write_records(path, records[start:start + per_file])
  return paths


def read_binary(paths):
  """Reads a file of examples: the class index, and the pixels."""
  content = np.fromfile(paths[0], np.uint8)
  if content.size % 7:
    raise UserError('a file is truncated', paths[0], 'write it again')
  content = content.reshape(-1, 7)
  return content[:, 1:].reshape((-1,) + SHAPE), content[:, 0]


@pytest.fixture
def make(tmp_path, monkeypatch):
  """Makes a source of a kind; the same arguments make the same files anew.

  The current folder is temporary, so that `folder` is a name for the folder of a cache.
  """
  monkeypatch.chdir(str(tmp_path))

  def make(kind, folder='data', count=COUNT, per_file=7, shift=0):
    folder, numbers = tmp_path / folder, np.arange(count) % COUNT
    folder.mkdir(exist_ok=True)
    classes = (numbers + shift) % len(LABELS)
    images = np.broadcast_to(10 * numbers[:, None, None, None], (count,) + SHAPE).astype(np.uint8)
    if kind == 'idx_files':
      paths = [folder / name for name in ('images.gz', 'labels.gz')]
      for path, array in zip(paths, (images[..., 0], classes)):
        write_idx(path, array)
      split = data.IdxSplit(*map(str, paths))
    elif kind == 'binary_files':
      paths = [folder / 'examples.bin']
      np.column_stack([classes, images.reshape(count, 6)]).astype(np.uint8).tofile(str(paths[0]))
      split = data.BinarySplit((str(paths[0]),), read_binary)
    elif kind == 'image_files':
      paths = [folder / '{:02d}.png'.format(number) for number in range(count)]
      for path, image in zip(paths, images):
        path.write_bytes(png(image))
      split = data.ImageSplit([bytes(path) for path in paths], classes.astype(np.int32))
    elif kind == 'arrays':
      split = data.ArraySplit(images, classes)
    elif kind == 'synthetic':
      split = data.SyntheticSplit(None)
    else:
      encode = png if kind == 'image_records' else bytes
      paths = write_in_files(folder, list(map(record_of, map(encode, images), classes)), per_file)
      if kind == 'examples':
        split = data.ExampleSplit(lambda: tf.data.TFRecordDataset(
            [str(path) for path in paths]).map(parse), count)
      else:
        index = record_index.load_or_scan_index(tuple(map(bytes, paths)))
        split = (data.ImageRecordSplit(index) if kind == 'image_records' else
                 data.ParsedRecordSplit(index, parse, None) if kind == 'records' else
                 data.ParsedRecordSplit(index, None, parse_batch))
    return make_source(split, SPEC, Role.TRAIN)

  return make


FINITE = ('idx_files', 'binary_files', 'image_files', 'image_records', 'records', 'parse_batch',
          'examples', 'arrays')
IMAGES = ('image_files', 'image_records')
MADE_BY_FUNCTIONS = ('records', 'parse_batch', 'examples')
CACHED = [(kind, cache) for kind in FINITE[:-1] for cache in ('none', 'memory')] + [
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
def train(make):
  """Returns the numbers of the examples in the first batches of training."""
  def train(kind, cache, num_batches, **given):
    found, graph = batches(make(kind).make_train_input_fn(
        *PLAN.given(**given), cache), num_batches)
    assert {len(labels) for _, labels in found} == {given.get('size', 4)}
    assert graph.as_graph_def().ByteSize() < 30000  # No examples and no paths of files.
    return numbers_of(found)

  return train


@pytest.mark.parametrize('kind', FINITE)
def test_evaluation_has_each_example_once_in_order(make, tmp_path, kind):
  source = make(kind)
  assert source.check_and_count_examples() == COUNT
  assert source.read_class_indices().tolist() == [number % 3 for number in range(COUNT)]
  assert list(map(os.fsdecode, source.list_files())) == (
      [] if kind in ('arrays', 'examples')
      else sorted(str(path) for path in (tmp_path / 'data').iterdir()))
  found, _ = batches(source.make_eval_input_fn(*PLAN.evaluation))
  assert numbers_of(found) == list(range(COUNT))
  assert [len(labels) for _, labels in found] == 5 * [4] + [1]
  ((_, labels),), _ = batches(source.make_eval_input_fn(*PLAN.given(one_hot=True).evaluation), 1)
  assert labels.dtype == np.float32 and labels.tolist() == np.eye(3)[[0, 1, 2, 0]].tolist()


@pytest.mark.parametrize('kind, cache', CACHED)
def test_training_has_each_example_once_an_epoch(train, kind, cache):
  seen = train(kind, cache, 16)
  assert seen[:8] == (STREAMED_ORDER if kind in STREAMED else RANDOM_ORDER)
  epochs = [seen[start:start + COUNT] for start in range(0, 3 * COUNT, COUNT)]
  assert [sorted(epoch) for epoch in epochs] == 3 * [list(range(COUNT))]
  assert len(set(map(tuple, epochs))) == 3
  assert train(kind, cache, 4, size=2, num_parallel_calls=1, prefetch=3) == seen[:8]
  assert train(kind, cache, 2, seed=2) != seen[:8]


@pytest.mark.parametrize('kind, cache', CACHED)
def test_resuming_and_shards(train, kind, cache):
  """Workers read together what one process would, and each can resume."""
  batch_size, replicas, workers, steps = 2, 2, 3, 3
  first = 10 ** 9 * COUNT + 5  # To read the epochs before would take minutes.
  of_one = np.reshape(train(kind, cache, steps * workers * replicas, size=batch_size,
                            shard=Shard(first)), (steps, workers, -1))
  assert len(set(of_one.ravel()[:COUNT - 5])) == COUNT - 5  # The rest of an epoch.
  for rank in range(workers):
    resumed = min(rank, 1)
    shard = Shard(first + resumed * of_one[0].size, workers, rank, batch_size * replicas)
    own = train(kind, cache, (steps - resumed) * replicas, size=batch_size,
                shard=shard)
    assert own == of_one[resumed:, rank].ravel().tolist()


@pytest.mark.parametrize('kind, cache', [pair for pair in CACHED if pair[0] != 'examples'])
def test_classes_are_read_equally_often(train, kind, cache):
  """Also by several workers that resume."""
  classes = np.array([0] * 17 + [1] * 4)
  seen = np.reshape(train(kind, cache, 21, size=3, class_indices=classes), (3, -1))
  for epoch in seen:
    counts = np.bincount(classes[epoch])
    assert sorted(counts) == [10, 11] and len(set(epoch[classes[epoch] == 0])) == counts[0]
    assert set(np.bincount(epoch)[17:]) <= {2, 3}
  assert len(set(map(tuple, seen))) == 3
  own = train(kind, cache, 4, size=3, class_indices=classes, shard=Shard(5, 2, 1, 6))
  assert own == seen.ravel()[[*range(11, 17), *range(23, 29)]].tolist()


@pytest.mark.parametrize('kind, cache', [
    pair for pair in CACHED if pair[0] not in MADE_BY_FUNCTIONS])
def test_augmented_examples(make, kind, cache):
  """On any worker, and resumed, those of their positions; images of one color get brighter."""
  source = make(kind)

  def read(augment):
    found, _ = batches(source.make_train_input_fn(*PLAN.given(
        augment=augment, shard=Shard(40, 2, 1, 4), one_hot=True, seed=3), cache), 3)
    return map(np.concatenate, zip(*found))

  (plain, expected_labels), (pixels, labels) = read('none'), read('color')
  np.testing.assert_array_equal(labels, expected_labels)
  with tf.Graph().as_default(), tf.Session() as session:
    factors = session.run([.6 + .8 * tf.random.stateless_uniform([26], [3, position])[25]
                           for start in (44, 52, 60) for position in range(start, start + 4)])
  np.testing.assert_allclose(
      pixels, (plain * np.reshape(factors, (-1, 1, 1, 1))).clip(0, 255), rtol=1e-4)
  evaluated, _ = batches(source.make_eval_input_fn(*PLAN.given(augment='color').evaluation))
  assert numbers_of(evaluated) == list(range(COUNT))


@pytest.mark.parametrize('kind', ['image_files', 'image_records', 'records', 'parse_batch'])
def test_a_worker_reads_no_file_of_another(make, kind):
  """Of 512 files two workers read half each in an epoch, and few ahead."""
  source = make(kind, count=512, per_file=1)
  shard = Shard(0, 2, 1, 4)
  own = ExampleOrder(512, 1, shard).compute_indices(0, 256)
  for number in set(range(512)) - set(own):
    os.truncate(source.list_files()[number], 0)
  found, _ = batches(source.make_train_input_fn(*PLAN.given(shard=shard), 'none'), 5)
  assert numbers_of(found) == (own[:20] % COUNT).tolist()


@pytest.mark.parametrize('kind, message', [
    ('idx_files', 'wrong length: .*images.gz: .* truncated'),
    ('binary_files', 'a file is truncated: .*examples.bin'),
    ('image_files', 'an image cannot be decoded: .*/00.png .Invalid PNG data'),
    ('image_records', r'an example cannot be read: .*/train-00: record 6 \(truncated\): repair'),
    ('records', r'an example cannot be read: .*/train-00: record 6 \(truncated\)'),
    ('examples', 'a file of the data set .* is damaged: truncated record at')])
def test_a_damaged_example_is_named_or_skipped(make, tmp_path, kind, message):
  source = make(kind)
  path = str(min((tmp_path / 'data').iterdir()))
  os.truncate(path, os.path.getsize(path) - 18)
  for make_input_fn in (lambda: source.make_eval_input_fn(*PLAN.evaluation),
                        lambda: source.make_train_input_fn(*PLAN, 'none')):
    with pytest.raises(UserError, match=message), translate_errors(source):
      source.check_and_count_examples()
      batches(make_input_fn(), 12)
  rest, skipped = source.exclude_bad_images(InputFlags(max_bad_images=.05), str(tmp_path))
  assert len(skipped) == kind.startswith('image') and all(
      image.file.startswith(path) for image in skipped)
  if skipped:
    assert rest.check_and_count_examples() == len(rest.read_class_indices()) == COUNT - 1
    found, _ = batches(rest.make_eval_input_fn(*PLAN.evaluation))
    assert numbers_of(found) == [number for number in range(COUNT)
                                 if number != (0 if kind == 'image_files' else 6)]
    assert rest.files_fingerprint() != source.files_fingerprint()


def test_evaluations_read_small_idx_files_once(make, tmp_path, monkeypatch):
  source = make('idx_files')
  input_fn = source.make_eval_input_fn(*PLAN.evaluation)
  expected, _ = batches(input_fn)
  monkeypatch.setattr('estimator_train.data.source.MAX_AUTO_CACHED_BYTES', 0)
  streamed, _ = batches(source.make_eval_input_fn(*PLAN.evaluation))
  for path in (tmp_path / 'data').iterdir():
    path.unlink()
  again, _ = batches(input_fn)
  for found in (streamed, again):
    for batch, expected_batch in zip(found, expected):
      assert all(map(np.array_equal, batch, expected_batch))
    assert len(found) == len(expected)


@pytest.mark.parametrize('kind', FINITE)
def test_keys_of_the_content(make, kind):
  """A cache's key changes with a file; workers compare digests, whatever their folders."""
  source = make(kind)
  digest = source.digest_for_workers()
  assert digest == make(kind, 'copy').digest_for_workers()
  if kind == 'examples':
    assert not digest
    with pytest.raises(UserError, match='--cache_features require'):
      source.files_fingerprint()
    return
  assert digest not in ('', make(kind, 'fewer', count=20).digest_for_workers())
  if kind in ('idx_files', 'binary_files', 'image_files', 'arrays'):
    assert digest != make(kind, 'other', shift=1).digest_for_workers()
  key = source.files_fingerprint()
  assert key == source.files_fingerprint()
  for path in source.list_files():
    os.utime(path, ns=(1, 1))
    assert source.files_fingerprint() != key
    key = source.files_fingerprint()
  if kind == 'arrays':
    assert make(kind).files_fingerprint() == key != make(kind, shift=1).files_fingerprint()
  # Each worker has compared published files with the checksums.
  if kind in ('idx_files', 'binary_files'):
    source = make_source(source.split._replace(are_verified=True), SPEC, Role.TRAIN)
    assert source.digest_for_workers() == ''


def _replace_pixels(monkeypatch):
  """Makes the records and files of the same lengths with another content in the middle."""
  of = np.broadcast_to

  def broadcast(numbers, shape):
    images = of(numbers, shape).copy()
    images[COUNT // 2] ^= 1
    return images

  monkeypatch.setattr(np, 'broadcast_to', broadcast)


@pytest.mark.parametrize('kind', FINITE)
def test_the_digest_states_which_examples_there_are(make, kind, monkeypatch):
  """Not where they are: a copy has the same digest, and other examples or class indices not."""
  digest = make(kind).content_digest()
  assert make(kind, 'copy').content_digest() == digest
  others = [make(kind, 'fewer', count=20).content_digest(),
            make(kind, 'classes', shift=1).content_digest()]
  _replace_pixels(monkeypatch)
  others.append(make(kind, 'pixels').content_digest())
  assert len({digest, *others}) == 4


@pytest.mark.parametrize('kind', ['image_records', 'records', 'parse_batch'])
def test_records_in_other_files_are_the_same(make, kind):
  assert make(kind).content_digest() == make(kind, 'other', per_file=5).content_digest()


def test_images_in_another_order_are_the_same(make):
  source = make('image_files')
  files, classes = source.split
  reverse = source.split._replace(files=files[::-1], classes=classes[::-1])
  assert make_source(reverse, SPEC, Role.TRAIN).content_digest() == source.content_digest()


def test_examples_that_differ_each_time_are_known_by_their_number(make):
  def digest(count):
    split = data.ExampleSplit(lambda: tf.data.Dataset.range(1000).shuffle(1000).map(
        lambda number: (number, number % 3)).take(count), count)
    return make_source(split, SPEC, Role.TRAIN).content_digest()

  assert digest(50) == digest(50) != digest(60)


def test_binary_files_of_another_data_set(make):
  source = make('binary_files')
  for changed in ({'image_shape': (3, 2, 1)}, {'labels': ('a', 'b')}):
    source = make_source(source.split, SPEC._replace(**changed), Role.TRAIN)
    with pytest.raises(UserError, match=r'images of shape \(21, 2, 3, 1\), classes up to 2: give'):
      source.check_and_count_examples()


def test_synthetic_examples_are_one_batch_again_and_again(make):
  source = make('synthetic')
  assert source.check_and_count_examples() is None
  with pytest.raises(UserError, match='require a finite data set'):
    source.read_class_indices()
  assert not source.digest_for_workers()
  large = PLAN.given(image_shape=(16, 15, 1))
  for input_fn in (source.make_train_input_fn(*large, 'none'),
                   source.make_eval_input_fn(*large.evaluation)):
    ((pixels, labels), (again, same_labels)), _ = batches(input_fn, 2)
    assert pixels.shape == (4, 16, 15, 1) and pixels.dtype == np.uint8
    assert 0 <= pixels.min() < 20 and 235 < pixels.max() <= 255
    assert set(labels) <= {0, 1, 2} and labels.tolist() == same_labels.tolist()
    np.testing.assert_array_equal(pixels, again)


def test_small_idx_files_are_cached_by_default(make, monkeypatch):
  source = make('idx_files')
  for given, small_bytes, cache in (('auto', COUNT * 6, 'memory'), ('auto', COUNT * 6 - 1, 'none'),
                                    ('memory', 0, 'memory')):
    monkeypatch.setattr(source_module, 'MAX_AUTO_CACHED_BYTES', small_bytes)
    assert opening.resolve_cache(source, InputFlags(cache=given)) == cache


def test_small_folders_of_images_are_cached_by_default(make, monkeypatch):
  images = make('image_files')
  assert opening.resolve_cache(images, InputFlags()) == 'none'
  images.spec = images.spec._replace(name='./photos')
  for augment, small_bytes, cache in (('flip,pad_crop', COUNT * 6, 'memory'),
                                      ('flip,crop', COUNT * 6, 'none'),
                                      ('none', COUNT * 6 - 1, 'none')):
    monkeypatch.setattr(source_module, 'MAX_AUTO_CACHED_BYTES', small_bytes)
    assert opening.resolve_cache(images, InputFlags(augment=augment)) == cache


@pytest.mark.parametrize('kind', FINITE)
@pytest.mark.parametrize('flag, unsupported, message', [
    ({'class_sampling': 'balanced'}, ['examples'], 'only be read in its own order'),
    ({'cache': 'folder'}, set(FINITE) - set(IMAGES), 'only image files can be cached in a folder'),
    ({'augment': 'flip'}, MADE_BY_FUNCTIONS, 'examples of a function .* cannot be augmented')])
def test_what_only_some_support(make, kind, flag, unsupported, message, monkeypatch):
  settings, run_dir = Settings(model_dir='any', train_steps=1, mode='train', **flag), RunDir('any')
  monkeypatch.setattr(opening.datasets, 'describe_data_set', lambda *unused: DataSet(
      *SPEC, make(kind).split))
  if kind in unsupported:
    with pytest.raises(UserError, match=message):
      opening.open_data(settings, run_dir, run_dir, False)
  else:
    assert opening.open_data(settings, run_dir, run_dir, False).train.num_examples == COUNT


@pytest.mark.parametrize('kind', FINITE)
def test_the_published_pipeline(make, kind):
  """The stages of 2018, each example once a pass, and another order in a resumed run."""
  if kind not in IMAGES:
    with pytest.raises(UserError, match='published requires image files or TFRecord files'):
      make(kind).make_published_input_fn(*PLAN)
    return

  def read(num_batches, **given):
    found, graph = batches(make(kind).make_published_input_fn(*PLAN.given(**dict(
        {'image_shape': (2, 3, 3), 'size': 7, 'shuffle_buffer': 99}, **given))),
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
  shards = [set(read(7, size=1, shard=Shard(0, 2, rank, 1))[0]) for rank in (0, 1)]
  assert len(shards[0]) == len(shards[1]) == 7 and not shards[0] & shards[1]
  if kind == 'image_records':
    with pytest.raises(UserError, match=r'requires a file per worker: 3 file\(s\) for 4 workers: '):
      read(1, shard=Shard(0, 4, 0, 1))
