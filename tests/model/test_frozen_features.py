"""Training on the frozen layers' output is training on the images."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from training_runs import assert_same

from estimator_train.errors import UserError
from estimator_train.model import frozen_features, networks


def train(model_dir, model, **given):
  training_runs.train(model_dir, **{
      'model': model, 'batch_size': 12, 'optimizer': 'sgd', 'learning_rate': 0.05,
      'train_steps': 20, **given})
  return training_runs.variables(model_dir)


def test_same_weights_on_idx_files(tmp_path):
  given = {'model': 'own_models:frozen_batch_norm', 'optimizer': 'adam', 'train_steps': 8}
  plain = train(tmp_path / 'plain', **given)
  assert_same(plain, train(tmp_path / 'cached', cache_features=True, **given), 1e-5)
  assert any(name.startswith('conv2d/kernel') for name in plain)


@pytest.fixture
def of_folders(image_folders):
  return {'dataset': 'image_folder', 'train_pattern': str(image_folders / 'train/*/*.jpeg'),
          'image_size': (32, 32), 'model': 'own_models:frozen_first', 'batch_size': 6,
          'train_steps': 4}


def test_same_weights_on_images(tmp_path, of_folders):
  cached = dict(of_folders, cache_features=True, cache=str(tmp_path / 'features'))
  plain = train(tmp_path / 'plain', **of_folders)
  assert_same(plain, train(tmp_path / 'cached', **cached), 1e-5)
  (file,) = (tmp_path / 'features').iterdir()
  array = np.load(str(file))
  assert array.shape == (18, 28 * 28 * 3) and array.dtype == np.float32
  # On two replicas, and from the file.
  assert_same(plain, train(tmp_path / 'two', num_cpu_replicas=2, **cached), 1e-5)
  assert list((tmp_path / 'features').iterdir()) == [file]
  # Features of other types, weights (by the seed) or pixel values are other files.
  assert_same(plain, train(tmp_path / 'half', cache_features_dtype='float16', **cached), 1e-2)
  (half,) = set((tmp_path / 'features').iterdir()) - {file}
  assert np.load(str(half)).dtype == np.float16
  for count, changed in ((3, {'seed': 2}), (4, {'preprocess': 'caffe'})):
    train(tmp_path / 'changed {}'.format(count), **dict(cached, train_steps=1, **changed))
    assert len(list((tmp_path / 'features').iterdir())) == count


def test_a_run_resumes_with_and_without(tmp_path, of_folders):
  straight = train(tmp_path / 'straight', **of_folders)
  halved = dict(of_folders, train_steps=2)
  train(tmp_path / 'turns', cache_features=True, **halved)
  assert_same(straight, train(tmp_path / 'turns', **of_folders), 1e-5)
  train(tmp_path / 'back', **halved)
  assert_same(straight, train(tmp_path / 'back', cache_features=True, **of_folders), 1e-5)


@pytest.mark.parametrize('name, trainable, last_frozen', [
    ('vgg16', 4, 'block4_pool'),
    # The last residual block is frozen but for its last layers, and has a way around them.
    pytest.param('resnet50', 5, 'conv5_block2_out', marks=pytest.mark.slow),
    ('own_models:frozen_first', None, 'flatten'),
    # These are followed by layers that differ from step to step, and so are not cached.
    ('own_models:frozen_dropout', None, 'conv2d'), ('own_models:frozen_batch_norm', None, 'conv2d'),
    ('own_models:frozen_dropout_head', None, 'flatten')])
def test_where_the_network_is_cut(name, trainable, last_frozen):
  with tf.Graph().as_default():
    model = networks.build_named_model(name, (64, 64, 3), 4, trainable)
    frozen, rest = frozen_features.split_after_frozen_layers(model, name)
  assert frozen.layers[-1].name == last_frozen
  assert not frozen.trainable_weights
  assert frozen.weights + rest.weights == model.weights
  assert rest.trainable_weights == model.trainable_weights
  assert rest.output_shape == model.output_shape


@pytest.mark.parametrize('model, given, message', [
    ('fashion_cnn', {}, 'needs frozen layers at the beginning of the .*: --model=fashion_cnn'),
    ('own_models:partly_frozen', {}, 'needs frozen layers at the beginning'),
    ('own_models:frozen_first', {'dataset': 'synthetic'},
     'require a finite data set.*--cache_features')])
def test_what_cannot_be_cached(tmp_path, model, given, message):
  with pytest.raises(UserError, match=message):
    train(tmp_path, model, cache_features=True, **given)
