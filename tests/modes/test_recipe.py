"""The ImageNet recipe: augmentation, weight decay and label smoothing, and its flagfile."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, write_records
from test_tfrecords import assert_same_weights, weights_of
from test_training_modes import fails

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow


@pytest.fixture
def flags(image_records):
  return ['--dataset=tfrecord', '--train_pattern={}/train-*'.format(image_records),
          '--eval_pattern={}/test-*'.format(image_records), '--image_size=24,24', '--batch_size=6',
          '--model=own_models:two_layers', '--optimizer=sgd', '--learning_rate=0.01']


@pytest.fixture
def train(run_program, flags, tmp_path):
  def run(folder, *arguments):
    done = run_program('--model_dir={}'.format(tmp_path / folder), *flags, *arguments)
    assert done.code == 0, done.err
    return done.result
  return run


RECIPE = ['--augment=crop_flip', '--weight_decay=0.01', '--label_smoothing=0.1']


def test_resumed_and_on_two_replicas(train, tmp_path):
  whole = train('whole', '--train_steps=6', *RECIPE)
  train('parts', '--train_steps=2', *RECIPE)
  train('parts', '--train_steps=6', *RECIPE)
  assert_same_weights(tmp_path / 'parts', tmp_path / 'whole')
  two = train('two', '--train_steps=6', '--num_cpu_replicas=2', *RECIPE)
  assert_same_weights(tmp_path / 'two', tmp_path / 'whole')
  assert two['average_loss'] == pytest.approx(whole['average_loss'], rel=1e-4)


def test_the_first_step_of_weight_decay(train, tmp_path):
  """Kernels get learning rate x factor x kernel more; biases do not."""
  train('plain', '--mode=train', '--train_steps=1')
  train('decayed', '--mode=train', '--train_steps=1', '--weight_decay=0.5')
  initial = tf.train.load_checkpoint(str(tmp_path / 'plain' / 'keras' / 'keras_model.ckpt'))
  plain, decayed = weights_of(tmp_path / 'plain'), weights_of(tmp_path / 'decayed')
  kernels = [name for name in plain if name.endswith('kernel')]
  biases = [name for name in plain if name.endswith('bias')]
  assert kernels and biases
  for name in kernels:
    np.testing.assert_allclose(plain[name] - decayed[name], .01 * .5 * initial.get_tensor(name),
                               atol=1e-6)
  for name in biases:
    np.testing.assert_allclose(plain[name], decayed[name], atol=1e-7)


def test_smoothed_labels_are_trained_on_but_not_evaluated(train):
  """With a smoothing near 1, all labels are the same, and the model learns nothing."""
  smoothed = train('smoothed', '--train_steps=60', '--label_smoothing=0.999')
  plain = train('plain', '--train_steps=60')
  assert plain['train_loss'] < .4 and .6 < smoothed['train_loss'] < .75
  again = train('plain', '--mode=evaluate', '--label_smoothing=0.5')
  assert plain['average_loss'] < .4
  assert again['average_loss'] == pytest.approx(plain['average_loss'])
  weighted = train('weighted', '--train_steps=3', '--label_smoothing=0.1',
                   '--class_weights=balanced')
  assert np.isfinite(weighted['average_loss'])


@pytest.mark.parametrize('flag', ['--weight_decay=0.1', '--label_smoothing=0.1'])
def test_a_compiled_model_has_its_own_loss(run_program, flags, tmp_path, flag):
  assert fails(run_program('--model_dir={}'.format(tmp_path / 'm'), '--train_steps=1', flag, *flags,
                           '--model=own_models:compiled_with_sgd'),
               'a compiled model trains with its own optimizer: --model=own_models:compiled_with_'
               'sgd ' + flag)


def test_what_cannot_be_augmented(run_program, tmp_path):
  assert fails(run_program('--model_dir={}'.format(tmp_path / 'm'), '--train_steps=1',
                           '--augment=flip', '--dataset=fashion_mnist_sample'),
               'only image files and images in TFRecord files can be augmented: --augment=flip')


def test_the_flagfile(run_program, image_records, tmp_path, monkeypatch):
  """With few records and small images, but with the network and all other flags of the recipe."""
  monkeypatch.syspath_prepend(str(ROOT))
  for split in ('train', 'test'):  # Label 0 is a background class.
    for path in image_records.glob(split + '-*'):
      examples = list(map(tf.train.Example.FromString, tf.io.tf_record_iterator(str(path))))
      for example in examples:
        example.features.feature['image/class/label'].int64_list.value[0] += 1
      write_records(path, [example.SerializeToString() for example in examples])
  done = run_program('--flagfile={}'.format(ROOT / 'examples' / 'imagenet_resnet50.flags'),
                     '--train_pattern={}/train-*'.format(image_records),
                     '--eval_pattern={}/test-*'.format(image_records), '--image_size=32,32',
                     '--batch_size=6', '--train_epochs=1', '--lr_boundaries_epochs=0.3,0.6,0.8',
                     '--lr_warmup_epochs=0.2', '--model_dir={}'.format(tmp_path / 'model'))
  assert done.code == 0, done.err
  assert done.result['global_step'] == 3 and done.result['examples'] == 10
  assert 'learning rate' in done.err
