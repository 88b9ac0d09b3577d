"""What is exported, served by a process of TensorFlow 2."""

import subprocess

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from test_export_mode import images_and_predictions


def with_every_kind_of_layer(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(8, 3, activation='tanh', input_shape=image_shape), layers.BatchNormalization(),
      layers.MaxPooling2D(), layers.Dropout(0.5), layers.Flatten(), layers.Dense(num_classes)])


@pytest.mark.slow
def test_the_same_predictions(run_program, image_folders, tmp_path, clients_python):
  arguments = ['--dataset=image_folder', '--image_size=20,24', '--batch_size=6',
               '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
               '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--train_epochs=5',
               '--model_dir={}'.format(tmp_path / 'model'),
               '--model=test_export_to_tensorflow_2:with_every_kind_of_layer']
  trained = run_program(*arguments + ['--export_dir={}'.format(tmp_path / 'saved_model')])
  as_h5 = run_program(*arguments + ['--mode=export', '--export_format=h5',
                                    '--export_dir={}'.format(tmp_path / 'h5')])
  assert trained.code == as_h5.code == 0, as_h5.err
  pixels, logits = images_and_predictions(arguments, 10)
  expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  files = [file.read_bytes() for file in sorted(image_folders.glob('test/*/*.jpeg'))]
  lengths = [len(file) for file in files]
  np.savez(str(tmp_path / 'request.npz'), lengths=lengths,
           contents=[np.frombuffer(file.ljust(max(lengths)), np.uint8) for file in files],
           images=np.repeat(pixels, 3, -1) / np.float32(255), labels=np.eye(2)[[0] * 5 + [1] * 5])

  served = subprocess.run(
      [clients_python, '-I', str(ROOT / 'tests' / 'serve_in_tensorflow_2.py'),
       trained.result['export']['path'], as_h5.result['path'] + '/model.h5',
       str(tmp_path / 'request.npz'), str(tmp_path / 'answer.npz')],
      stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
  assert served.returncode == 0, served.stderr
  answer = np.load(str(tmp_path / 'answer.npz'))
  assert str(answer['version']).startswith('2.')
  np.testing.assert_allclose(answer['by_bytes'], expected, rtol=0, atol=1e-6)
  np.testing.assert_allclose(answer['by_tensor'], expected, rtol=0, atol=1e-6)
  assert answer['top_labels'][:, 0].tolist() == [
      (b'A', b'B')[index] for index in expected.argmax(-1)]
  for prediction, loss in (('by_h5', 'h5_loss'), ('by_keras_3', 'keras_3_loss')):
    np.testing.assert_allclose(answer[prediction], logits, rtol=1e-5, atol=1e-6)
    assert answer[loss] == pytest.approx(trained.result['average_loss'], rel=1e-5)
  assert answer['warmed_up'].tolist() == ['serving_default', 'images']
