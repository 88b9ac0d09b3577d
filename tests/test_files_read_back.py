"""Every file that the program reads back, damaged at random: never a traceback, and no silent use.

`FILES` lists these files. A new file that the program reads back needs an entry.
"""

import functools
import json
import os
import random

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint
from estimator_train.data import (
  DataSpec,
  ImageSplit,
  Role,
  bad_images,
  cache as array_cache,
  record_index,
  user_examples,
)
from estimator_train.data.image_source import ImageFileSource
from estimator_train.distribution import horovod
from estimator_train.errors import UserError
from estimator_train.model import initial_weights
from estimator_train.modes import reproduce, write_tfrecords
from estimator_train.modes.scaling import points
from estimator_train.reports import learning_curves, metrics_log, page
from estimator_train.run_dir import RunDir, data_record, lock, read_checkpoint_list
from estimator_train.settings import Settings
from estimator_train.settings.flags import InputFlags
from estimator_train.settings.workloads import WORKLOADS
from estimator_train.system import record_framing, storage
from estimator_train.training import selection

RULES = Settings(model_dir='x', train_steps=1, early_stopping_steps=5).evaluation
POINT = points.Point(points.CPU, 1, points.BOTH, points.REAL, 1)
PART = next(iter(WORKLOADS.values())).parts[0]
OTHER_VALUES = (None, 'text', True, [], {}, [[1, [2]]], -1, 0, .5, 1e99, 10 ** 400)


def _to_text(value):
  return json.dumps(value).encode()


def _events(scale):
  return b''.join(record_framing.frame_record(tf.Event(step=step, summary=tf.Summary(value=[
      tf.Summary.Value(tag='loss', simple_value=scale / step)])).SerializeToString())
                  for step in range(1, 6))


def _record_index(folder):
  path = os.path.join(folder, 'data')
  if not os.path.exists(path):
    storage.write_bytes(path, b''.join(
        record_framing.frame_record(b'x' * size) for size in range(9)))
  os.utime(path, (1, 1))
  index = record_index.load_or_scan_index((os.fsencode(path),))
  return index.lengths.tolist(), index.first_records.tolist(), index.damages


def _array(folder):
  return array_cache.load_or_fill_array(
      folder, 'a', (50, 4), np.uint8, lambda array: array.fill(7)).shape


def _bad_images(folder):
  source = ImageFileSource(
      DataSpec('any', ('a', 'b'), None), ImageSplit([], np.zeros(0, int)), Role.TEST)
  return source.exclude_bad_images(InputFlags(), folder)[1]


def _model():
  return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,), name='only')])


def _weights(folder):
  with tf.Graph().as_default():
    path = os.path.join(folder, 'w.h5')
    initial_weights.load_initial_weights(_model(), Settings(
        model_dir='x', train_steps=1, weights=path).model, None)


def _weights_content(folder):
  with tf.Graph().as_default():
    _model().save_weights(os.path.join(folder, 'w.h5'))


def _locked(folder):
  with lock.lock_folder(folder, .01, .02):
    return True


PAGE_FILES = {
    'throughput.json': {'examples_per_sec': 5., 'shares': {'input': .1}, 'devices': ['cpu']},
    'evaluation.json': {'accuracy': .5, 'examples': 9, 'per_class': {'a': {'support': 3}},
                        'confusions': [{'label': 'a', 'predicted': 'b', 'examples': 2}],
                        'calibration_bins': [{'examples': 9, 'confidence': .5, 'accuracy': .5}],
                        'differs_from_run': ['x']},
    'lr_finder.json': {'points': [{'learning_rate': .1, 'loss': 1., 'smoothed_loss': 1.}]},
    'input_benchmark.json': {'warm_images_per_sec': 9.}, 'ledger.json': {'rows': [{'what': 'x'}]},
    'scaling.json': {'table': [{'scaling': 'weak', 'input': 'real', 'replicas': 1}]},
    'report/curves.json': {'train_loss': [[1, .5], [2, .25]]},
    'report/outputs.json': {'y': {'examples': 1, 'true': [1.], 'predicted': [2.]}},
    'report/samples.json': {'samples': [{'label': 'a', 'predicted': 'b', 'image': 'x.png'}]},
    'report/steps.json': {'global_step': [1], 'mean_secs': [.1], 'max_secs': [.2]}}
# By the path in the folder: the content, or a function that writes it; a function that reads it;
# and whether checksums reveal each change.
FILES = {
    'flags.txt': (b'--seed=3\n--train_steps=7\n',
                  lambda folder: RunDir(folder).read_flags(), False),
    'labels.txt': (b'a\nb\n', lambda folder: RunDir(folder).read_class_names(), False),
    'batch_sizes.json': (_to_text([[0, 10], [5, 20]]),
                         lambda folder: RunDir(folder).read_clock(7).examples_at(9), False),
    'data.json': (_to_text({'test_examples': 'x', 'validation': {
        'fraction': .5, 'seed': 1, 'examples': 'AAECAwQFBgc='}}),
                  lambda folder: data_record.read(RunDir(folder)), False),
    'checkpoint': (b'model_checkpoint_path: "model.ckpt-3"\n',
                   read_checkpoint_list, False),
    'best/best.json': (_to_text({'checkpoint': '3/model.ckpt-3', 'global_step': 3, 'accuracy': .5,
                                 'last_evaluated': 3, 'examples_digest': 'x',
                                 'compared_since': 2}), best_checkpoint.read_best, False),
    'stopped.json': (_to_text(dict(selection._select_stopping_flags(RULES), global_step=3,
                                   why='x')), lambda
                     folder: selection.read_stop_reason(RunDir(folder), RULES, 3), False),
    'metrics.jsonl': (_to_text({'kind': 'train', 'global_step': 3}) + b'\n',
                      lambda folder: metrics_log.remove_steps_after(folder, 5), False),
    'events.out.tfevents.1.host': (_events(1.), learning_curves.read_learning_curves, True),
    'eval/events.out.tfevents.1.host': (_events(1.), learning_curves.read_last_evaluation, True),
    'run.lock': (_to_text({'host': 'a', 'pid': 1, 'boot': 'b'}), _locked, False),
    'rank_0_address.json': (_to_text({'launch_id': 'x', 'hosts': ['127.0.0.1'], 'port': 9}), lambda
                            folder: horovod._read_addresses(
                                os.path.join(folder, 'rank_0_address.json'), 'x'), False),
    'points/{}/throughput.json'.format(POINT.name): (
        _to_text({'examples_per_sec': 1., 'shares': {'input': .1}, 'devices': ['cpu']}),
        lambda folder: points.read_complete_reports(
            os.path.join(folder, 'points', POINT.name)), False),
    'points/{}/done.json'.format(POINT.name): (
        _to_text({'point': POINT.name}),
        lambda folder: points.read_complete_reports(
            os.path.join(folder, 'points', POINT.name)), False),
    'part.json': (_to_text({
        'throughput': {'num_replicas': 1, 'devices': ['cpu'], 'per_replica_batch_size': 4,
                       'global_step': 3, 'examples_per_sec': 5., 'global_batch_size': 4,
                       'steps_per_sec': 2., 'step_secs': {'mean': .1}},
        'evaluation': {'accuracy': .5, 'average_loss': .5}}), lambda folder: storage.load_or_warn(
            os.path.join(folder, 'part.json'),
            functools.partial(reproduce.parse_complete_reports, PART)),
                  False),
    'write_tfrecords.json': (_to_text({'digest': 'x', 'shards': {'a': 'b'}}),
                             lambda folder: write_tfrecords._Manifest(folder, 'x')._shard_digests,
                             False),
    'example_counts.json': (
        _to_text({user_examples.qualified_name(_bad_images): 123}),
        lambda folder: user_examples._load_or_count_examples(_bad_images, folder), False),
    'skipped_images.json': (_to_text({'test': {'files': 'key', 'bad': []}}), _bad_images, False),
    'a.npy': (_array, _array, False),
    'estimator_train/record_index/*.npz': (_record_index, _record_index, True),
    'w.h5': (_weights_content, _weights, False),
    **{name: (_to_text(value), page.read_page_data, False) for name, value in PAGE_FILES.items()}}


def _other_json(value):
  """Yields copies of a JSON value in which a part has another value, or is missing."""
  yield from OTHER_VALUES
  for key in list(value) if isinstance(value, dict) else range(
      len(value) if isinstance(value, list) else 0):
    for part in _other_json(value[key]):
      other = value.copy()
      other[key] = part
      yield other
    other = value.copy()
    del other[key]
    yield other


def _mutations(content, name):
  """Yields damaged contents."""
  yield from (b'', bytes(len(content)), b'[' * 100000, b'{"a":' * 100000, b'NaN', b'1e999', b'\xff')
  for other, _, _ in FILES.values():  # Files of other kinds, and so of other runs.
    if isinstance(other, bytes):
      yield other
  yield from (content[:size] for size in range(0, len(content), max(len(content) // 40, 1)))
  generator = random.Random(name)
  for _ in range(100):
    bad = bytearray(content)
    bad[generator.randrange(len(bad))] ^= 1 << generator.randrange(8)
    yield bytes(bad)
  if name.endswith('.json'):
    yield from map(_to_text, _other_json(json.loads(content.decode())))


@pytest.mark.parametrize('name', FILES)
def test_a_damaged_file_is_reported_or_read(tmp_path, monkeypatch, caplog, name):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(user_examples, '_count_elements', lambda make_dataset: 123)
  monkeypatch.setattr(bad_images, 'iter_undecodable_images', lambda *given: [])
  monkeypatch.setattr(ImageFileSource, 'files_fingerprint', lambda self: 'key')
  monkeypatch.setattr(storage.os, 'fsync', lambda descriptor: None)
  content, read, has_checksums = FILES[name]
  if isinstance(content, bytes):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  else:
    content(str(tmp_path))
    (path,) = tmp_path.glob(name)
  for other in {'throughput.json': 'done.json', 'done.json': 'throughput.json'}.items():
    if name == 'points/{}/{}'.format(POINT.name, other[0]):
      (path.parent / other[1]).write_bytes(FILES[name.replace(*other)][0])
  good = path.read_bytes()
  expected, num_reported = read(str(tmp_path)), 0
  assert '{} cannot'.format(path) not in caplog.text or (
      name == 'best/best.json')  # Its checkpoint is missing.
  for bad in _mutations(good, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bad)
    caplog.clear()
    try:
      found, message = read(str(tmp_path)), caplog.text
    except UserError as error:
      found, message = None, str(error)
    except Exception as error:
      raise AssertionError('{!r} of {}'.format(error, bad[:999])) from error
    num_reported += str(path) in message
    if has_checksums:
      # As the event file of a killed run, even in its first header.
      is_truncated = good.startswith(bad) or len(bad) < record_framing.HEADER_BYTES
      assert found == expected or str(path) in message or is_truncated, bad
  # Nothing depends on the owner of a lock that the kernel has released, and a list of checkpoints
  # or an address that cannot be read is like none.
  assert num_reported > 10 or name in ('run.lock', 'rank_0_address.json', 'checkpoint')
