"""`--mode=export` and `--export_dir`: what is exported predicts what the checkpoint does."""

import base64
import json
import signal

import numpy as np
import onnxruntime
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from test_training_modes import fails

from estimator_train import flags
from estimator_train.inputs import factory as inputs
from estimator_train.modes import train_and_evaluate


def images_and_predictions(arguments, count):
  """Returns the first test examples, and the Estimator's outputs of the checkpoint for them."""
  settings = flags.parse(arguments + ['--mode=evaluate', '--num_cpu_replicas=1'])
  plan, model = training_runs.prepare(settings)
  make = inputs.make_eval_input_fn(plan.data.dataset, settings, model.one_hot, count)

  def first():
    return make().take(1)

  outputs = np.array([list(found.values())[0] for found in model.estimator.predict(first)])
  with tf.Graph().as_default(), tf.Session() as session:
    images, _ = session.run(tf.data.make_one_shot_iterator(first()).get_next())
  return images, outputs


def serve(version, signature='serving_default', **arrays):
  """Returns the outputs of a signature by name, as does a process that knows no more."""
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.loader.load(session, ['serve'], str(version))
    signature = loaded.signature_def[signature]
    return session.run({name: info.name for name, info in signature.outputs.items()},
                       {signature.inputs[name].name: array for name, array in arrays.items()})


def only(folder):
  """Returns the one version in a folder, which holds nothing else."""
  version, = folder.iterdir()
  assert version.name.isdigit()
  return version


@pytest.fixture
def folders(image_folders, write_images, tmp_path):
  """The arguments for images of several sizes: grey JPEGs, one in colour and a PNG."""
  random = np.random.RandomState(2)
  write_images({image_folders / 'test' / 'A' / name: random.randint(0, 256, (30, 40, 3), np.uint8)
                for name in ('colour.jpeg', 'png.png')})
  (image_folders / 'test' / 'A' / 'png.png').rename(image_folders / 'test' / 'A' / 'png.jpeg')
  return ['--dataset=image_folder', '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
          '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--image_size=16,20',
          '--batch_size=6', '--model_dir={}'.format(tmp_path / 'model'),
          '--export_dir={}'.format(tmp_path / 'exports'), '--train_steps=2']


@pytest.mark.parametrize('extra', [
    ['--model=own_models:two_layers', '--preprocess=caffe', '--class_weights=balanced',
     '--num_cpu_replicas=2'],
    ['--model=own_models:frozen_first', '--cache_features'],
], ids=' '.join)
def test_files_to_predictions(run_program, folders, image_folders, tmp_path, extra):
  done = run_program(*folders + extra)
  assert done.code == 0, done.err
  version = only(tmp_path / 'exports')
  assert done.result['export'] == {
      'path': str(version), 'format': 'saved_model', 'signatures': ['serving_default', 'images'],
      'checkpoint': str(tmp_path / 'model' / 'model.ckpt-2'), 'global_step': 2}
  assert (version / 'assets' / 'labels.txt').read_text() == 'A\nB\n'
  files = sorted(image_folders.glob('test/*/*.jpeg'))
  served = serve(version, image_bytes=[file.read_bytes() for file in files])
  _, expected = images_and_predictions(folders + extra, 12)
  assert len(expected) == len(files) == 12
  np.testing.assert_allclose(served['probabilities'], expected, rtol=0, atol=1e-6)
  np.testing.assert_allclose(served['top_probabilities'], -np.sort(-expected), rtol=0, atol=1e-6)
  order = expected.argsort(-1)[:, ::-1]
  np.testing.assert_array_equal(served['top_labels'], np.array([b'A', b'B'], object)[order])
  assert served['labels'].tolist() == [[b'A', b'B']] * 12


def test_a_request_as_json(run_program, folders, image_folders, tmp_path):
  """TensorFlow Serving decodes {"b64": ...} wherever it stands for a string."""
  assert run_program(*folders + ['--model=own_models:two_layers', '--mode=train']).code == 0
  contents = [file.read_bytes() for file in sorted(image_folders.glob('test/*/*.jpeg'))]
  body = json.dumps({'instances': [{'image_bytes': {'b64': base64.b64encode(content).decode()}}
                                   for content in contents]})
  received = [base64.b64decode(instance['image_bytes']['b64'])
              for instance in json.loads(body)['instances']]
  outputs = serve(only(tmp_path / 'exports'), image_bytes=received)
  # It makes a JSON object of each row, and for that every output must have all rows.
  assert {len(output) for output in outputs.values()} == {12}
  binary = serve(only(tmp_path / 'exports'), image_bytes=contents)
  np.testing.assert_array_equal(outputs['probabilities'], binary['probabilities'])
  nothing = serve(only(tmp_path / 'exports'), image_bytes=np.empty(0, object))
  assert nothing['probabilities'].shape == nothing['labels'].shape == (0, 2)


@pytest.mark.parametrize('extra', [
    ['--model=mnist_dense'],  # Logits.
    ['--model=own_models:compiled_with_momentum', '--num_cpu_replicas=2'],
    ['--model=own_models:partly_frozen'],  # With batch norm.
], ids=' '.join)
def test_grey_images_and_the_tensor(run_program, tmp_path, extra):
  arguments = ['--model_dir={}'.format(tmp_path / 'model'), '--train_steps=2', '--batch_size=8',
               '--export_dir={}'.format(tmp_path / 'exports')] + extra
  assert run_program('--mode=train', *arguments).code == 0
  images, expected = images_and_predictions(arguments, 20)
  if extra == ['--model=mnist_dense']:
    expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
  with tf.Graph().as_default(), tf.Session() as session:
    contents = [session.run(tf.image.encode_png(image)) for image in images]
  by_bytes = serve(only(tmp_path / 'exports'), image_bytes=contents)
  np.testing.assert_allclose(by_bytes['probabilities'], expected, rtol=0, atol=1e-6)
  assert by_bytes['top_labels'].shape == (20, 5)
  by_tensor = serve(only(tmp_path / 'exports'), 'images', images=images / np.float32(255))
  np.testing.assert_allclose(by_tensor['probabilities'], expected, rtol=0, atol=1e-6)


@pytest.fixture
def trained(run_program, tmp_path):
  """The arguments of a training that is done."""
  def train(*extra):
    arguments = ['--dataset=synthetic', '--image_size=8,8', '--labels=é,b,c', '--batch_size=4',
                 '--train_steps=1', '--model=own_models:two_layers',
                 '--model_dir={}'.format(tmp_path / 'model')] + list(extra)
    done = run_program('--mode=train', *arguments)
    assert done.code == 0, done.err
    return arguments

  return train


def test_every_format_predicts_the_same(run_program, trained, tmp_path, monkeypatch):
  arguments = trained()
  monkeypatch.setenv('PATH', '/usr/bin:/bin')  # As in an environment that is not activated.
  versions = {}
  for name in ('saved_model', 'h5', 'tflite', 'onnx'):
    done = run_program(*arguments + ['--mode=export', '--export_format=' + name,
                                     '--export_dir={}'.format(tmp_path / name)])
    assert done.code == 0, done.err
    versions[name] = only(tmp_path / name)
    names = {'saved_model': {'signatures': ['serving_default', 'images']},
             'onnx': {'inputs': ['images'], 'outputs': ['probabilities']}}.get(name, {})
    assert done.out.count('\n') == 1
    assert done.result == dict(
        names, mode='export', model_dir=str(tmp_path / 'model'), path=str(versions[name]),
        format=name, checkpoint=str(tmp_path / 'model' / 'model.ckpt-1'), global_step=1)
    labels, = versions[name].rglob('labels.txt')
    assert labels.read_text(encoding='utf-8') == 'é\nb\nc\n'
  images, expected = images_and_predictions(arguments, 4)
  images = images / np.float32(255)
  served = serve(versions['saved_model'], 'images', images=images)
  np.testing.assert_allclose(served['probabilities'], expected, rtol=0, atol=1e-6)
  assert served['labels'][0].tolist() == ['é'.encode(), b'b', b'c']
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    by_keras = tf.keras.models.load_model(str(versions['h5'] / 'model.h5')).predict(images)
    tf.keras.backend.set_session(None)
  np.testing.assert_allclose(by_keras, expected, rtol=0, atol=1e-6)
  interpreter = tf.lite.Interpreter(str(versions['tflite'] / 'model.tflite'))
  interpreter.allocate_tensors()
  for image, outputs in zip(images, expected):
    interpreter.set_tensor(interpreter.get_input_details()[0]['index'], image[np.newaxis])
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]['index'])
    np.testing.assert_allclose(found[0], outputs, rtol=0, atol=1e-6)
  by_onnx = onnxruntime.InferenceSession(str(versions['onnx'] / 'model.onnx')).run(
      ['probabilities'], {'images': images})
  np.testing.assert_allclose(by_onnx[0], expected, rtol=0, atol=1e-6)


def test_it_takes_no_data(run_program, folders, image_folders, tmp_path):
  folders = [argument for argument in folders if 'export_dir' not in argument]
  assert run_program(*folders + ['--model=own_models:two_layers', '--mode=train']).code == 0
  image_folders.rename(tmp_path / 'elsewhere')
  again = ['--flagfile={}'.format(tmp_path / 'model' / 'flags.txt'), '--mode=export',
           '--export_dir={}'.format(tmp_path / 'exports')]
  done = run_program(*again)
  assert done.code == 0, done.err
  first = only(tmp_path / 'exports')
  assert (first / 'assets' / 'labels.txt').read_text() == 'A\nB\n'
  second = run_program(*again)
  assert int(second.result['path'].rpartition('/')[2]) > int(first.name)
  assert fails(run_program(*again + ['--image_size=16,21']), '--image_size=16,20 before and '
               '--image_size=16,21 now')
  (tmp_path / 'model' / 'labels.txt').unlink()
  assert fails(run_program(*again), 'the classes are unknown: no labels.txt in')
  assert len(list((tmp_path / 'exports').iterdir())) == 2


class Erf(tf.keras.layers.Layer):
  """What TensorFlow Lite of 1.15 cannot do."""

  def call(self, inputs):
    return tf.math.erf(inputs)


class NotAsText(tf.keras.layers.Layer):
  """What Keras can clone, but not write to a file."""

  def get_config(self):
    return dict(super().get_config(), what=object())

  @classmethod
  def from_config(cls, config):
    config.pop('what')
    return cls(**config)


def _with(layer, image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Flatten(input_shape=image_shape), layer,
                              layers.Dense(num_classes, activation='softmax')])


def erf(image_shape, num_classes):
  return _with(Erf(), image_shape, num_classes)


def bessel(image_shape, num_classes):
  return _with(tf.keras.layers.Lambda(tf.math.bessel_i0e), image_shape, num_classes)


def not_as_text(image_shape, num_classes):
  return _with(NotAsText(), image_shape, num_classes)


@pytest.mark.parametrize('extra, format_, message', [
    (['--model=test_export_mode:erf'], 'tflite',
     'cannot convert the model: unsupported operations: Erf: give'),
    (['--model=test_export_mode:bessel'], 'onnx',
     'tf2onnx cannot convert the model: unsupported operations: BesselI0e: give'),
    (['--image_size=8,8,2'], 'saved_model', 'requires one or three channels: the model takes 2'),
])
def test_what_cannot_be_exported(run_program, trained, tmp_path, extra, format_, message):
  arguments = trained(*extra) + ['--mode=export', '--export_dir={}'.format(tmp_path / 'exports')]
  assert fails(run_program(*arguments + ['--export_format=' + format_]), message)
  assert list((tmp_path / 'exports').iterdir()) == []


def test_what_keras_cannot_write(run_program, trained, tmp_path, monkeypatch):
  monkeypatch.setattr(train_and_evaluate.h5_model, 'save_latest_model', lambda *given: None)
  arguments = trained('--model=test_export_mode:not_as_text')
  done = run_program(*arguments + ['--mode=export', '--export_format=h5',
                                   '--export_dir={}'.format(tmp_path / 'exports')])
  assert fails(done, 'cannot be saved as an .h5 file: --model=test_export_mode:not_as_text')
  assert list((tmp_path / 'exports').iterdir()) == []


def test_wrong_together_with_the_model_dir(run_program, trained, tmp_path):
  arguments = ['--mode=export', '--export_dir={}'.format(tmp_path / 'exports')]
  assert fails(run_program('--model_dir', tmp_path / 'none', *arguments),
               'there is no checkpoint in --model_dir: {}'.format(tmp_path / 'none'))
  arguments = trained() + arguments
  for extra, message in (
      (['--labels=a,b,c'], 'trained with other class names: é,b,c before and a,b,c now'),
      (['--model=own_models:partly_frozen'], 'was trained with --model=own_models:two_layers, not'),
      (['--preprocess=tf'], 'was trained with --preprocess=unit, not --preprocess=tf'),
      (['--model=own_models:no_such'], 'names a function that does not exist')):
    assert fails(run_program(*arguments + extra), message)
  assert not list((tmp_path / 'exports').iterdir())


def test_a_folder_that_cannot_be_is_told_before_the_training(run_program, tmp_path):
  (tmp_path / 'file').write_text('')
  done = run_program('--dataset=synthetic', '--train_steps=1', '--model_dir', tmp_path / 'model',
                     '--export_dir', tmp_path / 'file')
  assert fails(done, '--export_dir cannot be written to: {}'.format(tmp_path / 'file'))
  assert not list((tmp_path / 'model').glob('model.ckpt-*'))


def test_a_training_that_was_stopped_exports_nothing(run_program, trained, tmp_path, monkeypatch):
  arguments = trained() + ['--export_dir={}'.format(tmp_path / 'exports'), '--mode=train']
  whole = train_and_evaluate.Trainer.train
  monkeypatch.setattr(train_and_evaluate.Trainer, 'train',
                      lambda self: whole(self)._replace(signum=signal.SIGTERM))
  assert run_program(*arguments).code == 143
  assert list((tmp_path / 'exports').iterdir()) == []
