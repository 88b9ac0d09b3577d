"""`model.h5` is the trained model, for plain Keras."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.inputs import idx_files


@pytest.mark.parametrize('arguments', [
    ('--model=mnist_dense', '--distribution_strategy=central_storage', '--num_cpu_replicas=2'),
    ('--model=own_models:compiled_with_momentum',),
], ids=' '.join)
def test_plain_keras_scores_the_same(run_program, tmp_path, arguments):
  done = run_program('--model_dir', tmp_path, '--batch_size=16', '--train_steps=3', *arguments)
  assert done.code == 0, done.err
  images, classes = idx_files.read_split(idx.describe('fashion_mnist_sample').test, (28, 28, 1))
  images = images.astype(np.float32) / 255
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = tf.keras.models.load_model(str(tmp_path / 'model.h5'))
    labels = classes if 'sparse' in str(model.loss) else np.eye(10, dtype=np.float32)[classes]
    loss, _ = model.evaluate(images, labels, batch_size=1000, verbose=0)
    matches = (model.predict(images).argmax(-1) == classes).mean()
    tf.keras.backend.set_session(None)
  evaluation = json.loads((tmp_path / 'evaluation.json').read_text())
  assert matches == pytest.approx(evaluation['accuracy'], abs=1e-9)
  assert loss == pytest.approx(evaluation['average_loss'], rel=1e-5)
  assert not list(tmp_path.glob('*.part'))
