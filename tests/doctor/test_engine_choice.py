"""Which strategy is recommended for several workers."""

import importlib.util

import pytest

from estimator_train.doctor import engine_choice


def checks(*arguments):
  return {check.name: check for check in engine_choice.check_engine(*arguments)}


@pytest.mark.parametrize('strategy, weight_bytes, remedy', [
    ('multi_worker_mirrored', 4e5, ''), ('horovod', 8e7, ''),
    ('multi_worker_mirrored', 8e7, 'compare with --distribution_strategy=horovod'),
    ('horovod', 4e5, 'compare with --distribution_strategy=multi_worker_mirrored')])
def test_the_size_of_the_gradients_decides(strategy, weight_bytes, remedy):
  check = checks(strategy, 2, weight_bytes)['engine']
  assert check.level == 'ok' and check.remedy == remedy
  assert 'have at most {:.3g} MB'.format(weight_bytes / 1e6) in check.found


@pytest.mark.parametrize('strategy, num_workers, weight_bytes', [
    ('mirrored', 1, 8e7), ('multi_worker_mirrored', 1, 8e7), ('multi_worker_mirrored', 2, None),
    ('parameter_server', 2, 8e7)])
def test_nothing_to_recommend(strategy, num_workers, weight_bytes):
  assert 'engine' not in checks(strategy, num_workers, weight_bytes)


@pytest.mark.parametrize('spec, level', [(None, 'error'), (object(), 'ok')])
def test_horovod_must_be_installed(monkeypatch, spec, level):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: spec)
  assert checks('horovod', 1, None)['horovod'].level == level
  assert not checks('mirrored', 1, None)


def test_the_size_of_the_weights(tmp_path):
  folder = tmp_path / 'a [model]'
  assert engine_choice.read_weight_bytes(str(folder)) is None
  assert engine_choice.read_weight_bytes(None) is None  # Without --model_dir.
  (folder / 'keras').mkdir(parents=True)
  for number in range(2):
    (folder / 'keras' / 'keras_model.ckpt.data-0000{}-of-00002'.format(number)).write_bytes(
        b'x' * 500)
  (folder / 'keras' / 'keras_model.ckpt.index').write_bytes(b'x' * 100)
  assert engine_choice.read_weight_bytes(str(folder)) == 1000
