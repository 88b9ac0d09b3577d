"""--preprocess=auto: what belongs to the weights with which a run starts."""

import h5py
import pytest

from estimator_train.settings import PREPROCESS_ATTRIBUTE, Settings, command_line, to_flagfile

BASE = ['--dataset=synthetic', '--train_steps=1']


def choose(*arguments):
  return command_line.parse([*BASE, *arguments]).model.preprocess


def test_what_belongs_to_the_weights(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))
  (tmp_path / 'flags.txt').write_text('--preprocess=tf\n')  # Of no run that is named.
  for model, imagenet in (('vgg16', 'caffe'), ('resnet50v2', 'tf'), ('densenet121', 'torch')):
    given = ['--model=' + model, '--model_dir={}/new'.format(tmp_path)]
    assert choose(*given) == choose(*given[:1], '--mode=input_benchmark') == 'unit'
    assert choose(*given, '--weights=imagenet') == imagenet
    for name in ('_weights_tf_dim_ordering_tf_kernels_notop', '_1_0_224_tf_no_top', '-no-top'):
      assert choose(*given, '--weights=/w/{}{}.h5'.format(model, name)) == imagenet
    assert choose(*given, '--weights=imagenet', '--preprocess=unit') == 'unit'
  # The weights of a run.
  run = tmp_path / 'run'
  run.mkdir()
  (run / 'flags.txt').write_text(to_flagfile(Settings(preprocess='torch')))
  for path in (run, run / 'model.h5', run / 'model.ckpt-7', run / 'best' / '7' / 'model.ckpt-7'):
    assert choose('--model_dir={}/new'.format(tmp_path), '--weights={}'.format(path)) == 'torch'


@pytest.mark.parametrize('weights', ['none', 'imagenet'])
def test_runs_of_earlier_versions_keep_theirs(tmp_path, weights):
  given = ['--model=vgg16', '--weights=' + weights, '--model_dir={}'.format(tmp_path)]
  earlier = command_line.parse([*BASE, *given, '--preprocess=unit'])
  (tmp_path / 'flags.txt').write_text(to_flagfile(earlier))
  assert command_line.parse([*BASE, *given]) == earlier
  for mode in ('evaluate', 'predict', 'export'):
    settings = earlier.evolve(preprocess='auto', input='x', export_dir='y').for_mode(mode)
    assert settings.model.preprocess == 'unit'
  # A new run in the folder of a run without a checkpoint.
  other = [*BASE, *given[:1], '--weights=imagenet', *given[2:]]
  assert command_line.parse(other).model.preprocess == ('caffe' if weights == 'none' else 'unit')


@pytest.mark.parametrize('value', ['', 'auto', 'other', b'tf', 1, ['tf'], [1., 2.]])
def test_attributes_of_other_programs_have_no_effect(tmp_path, value):
  path = str(tmp_path / 'weights.h5')
  with h5py.File(path, 'w') as file:
    file.attrs[PREPROCESS_ATTRIBUTE] = value
  assert choose('--model_dir={}/new'.format(tmp_path), '--weights=' + path) == 'unit'
