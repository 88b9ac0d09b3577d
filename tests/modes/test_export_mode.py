"""`--mode=export` and `--export_dir`: what is exported predicts what the checkpoint does."""

import importlib.util
import json
import re
import subprocess

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import ROOT, load_script
from mode_runs import fails, image_flags
from PIL import Image

from estimator_train.data.run_data import make_batching
from estimator_train.settings import command_line


def estimators_predictions(arguments, count):
  """Returns the Estimator's outputs of the checkpoint for the first test examples."""
  settings = command_line.parse(arguments + ['--mode=evaluate', '--num_cpu_replicas=1'])
  run, model = training_runs.prepare(settings)
  make = run.data.test.make_eval_input_fn(
      make_batching(run.data.dataset, settings, model.one_hot, count))

  predictions = model.estimator.predict(lambda: make().take(1))
  return np.array([list(found.values())[0] for found in predictions])


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


def assert_close(found, expected, tolerance=1e-6):
  np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize('extra', [
    ['--model=own_models:two_layers', '--preprocess=caffe', '--class_weights=balanced'],
    ['--model=own_models:frozen_first', '--cache_features'],
    ['--model=own_models:partly_frozen', '--num_cpu_replicas=2'],  # With batch norm.
], ids=' '.join)
def test_image_files(run_well, run_program, image_folders, write_images, tmp_path, extra):
  """Grey JPEGs of several sizes, one in color and a PNG, to probabilities."""
  random, folder = np.random.RandomState(2), image_folders / 'test' / 'A'
  write_images({folder / name: random.randint(0, 256, (30, 40, 3), np.uint8)
                for name in ('color.jpeg', 'png.png')})
  (folder / 'png.png').rename(folder / 'png.jpeg')
  exports, model_dir = tmp_path / 'exports', tmp_path / 'model'
  arguments = image_flags(image_folders) + [
      '--image_size=16,20', '--batch_size=6', '--model_dir={}'.format(model_dir),
      '--export_dir={}'.format(exports), '--train_steps=2'] + extra
  done = run_well('--mode=train', *arguments)
  version = only(exports)
  assert done.result['export'] == {
      'path': str(version), 'format': 'saved_model',
      'signatures': ['serving_default', 'pictures', 'images'],
      'checkpoint': str(model_dir / 'model.ckpt-2'), 'global_step': 2}
  assert (version / 'assets' / 'labels.txt').read_text() == 'A\nB\n'
  contents = [file.read_bytes() for file in sorted(image_folders.glob('test/*/*.jpeg'))]
  served = serve(version, image_bytes=contents)
  expected = estimators_predictions(arguments, 12)
  # TensorFlow Serving makes a JSON object of each row, and for that every output must have all.
  assert {len(output) for output in served.values()} == {12} == {len(expected), len(contents)}
  # The inputs of the network are up to 255, and their rounding grows with them.
  tolerance = 1e-5 if '--preprocess=caffe' in extra else 1e-6
  assert_close(served['probabilities'], expected, tolerance)
  assert_close(served['top_probabilities'], -np.sort(-expected), tolerance)
  order = expected.argsort(-1)[:, ::-1]
  np.testing.assert_array_equal(served['top_labels'], np.array([b'A', b'B'], object)[order])
  assert served['labels'].tolist() == [[b'A', b'B']] * 12
  with tf.Session() as session:
    pictures = [session.run(tf.image.decode_jpeg(content, channels=3)) for content in contents]
  assert_close(np.concatenate([
      serve(version, 'pictures', pictures=picture[np.newaxis])['probabilities']
      for picture in pictures]), expected, tolerance)
  nothing = serve(version, image_bytes=np.empty(0, object))
  assert nothing['probabilities'].shape == nothing['labels'].shape == (0, 2)
  # An export takes no data, and the class names from model_dir.
  image_folders.rename(tmp_path / 'elsewhere')
  again = ['--flagfile={}'.format(model_dir / 'flags.txt'), '--mode=export']
  second = run_well(*again).result['path']
  assert int(second.rpartition('/')[2]) > int(version.name)
  assert_close(serve(second, image_bytes=contents)['probabilities'], expected, tolerance)
  assert fails(run_program(*again, '--image_size=16,21'), '--image_size=16,20 before and '
               '--image_size=16,21 now')
  (model_dir / 'labels.txt').unlink()
  assert fails(run_program(*again), 'the classes are unknown: no labels.txt in')
  assert len(list(exports.iterdir())) == 2


SYNTHETIC = ['--dataset=synthetic', '--image_size=8,8', '--labels=é,b,c', '--batch_size=4',
             '--train_steps=1', '--model=mnist_dense']  # It has logits.


def test_every_format_predicts_the_same(run_well, tmp_path, monkeypatch, capsys):
  model_dir = tmp_path / 'model'
  arguments = SYNTHETIC + ['--model_dir={}'.format(model_dir)]
  run_well('--mode=train', *arguments)
  monkeypatch.setenv('PATH', '/usr/bin:/bin')  # As in an environment that is not activated.
  versions = {}
  for name in ('saved_model', 'h5', 'tflite', 'onnx'):
    done = run_well(*arguments, '--mode=export', '--export_format=' + name,
                    '--export_dir={}'.format(tmp_path / name))
    versions[name] = only(tmp_path / name)
    names = {'saved_model': {'signatures': ['serving_default', 'pictures', 'images']},
             'onnx': {'inputs': ['pictures'], 'outputs': ['probabilities']}}.get(name, {})
    assert done.out.count('\n') == 1
    assert done.result == dict(
        names, mode='export', model_dir=str(model_dir), path=str(versions[name]),
        format=name, checkpoint=str(model_dir / 'model.ckpt-1'), global_step=1)
    labels, = versions[name].rglob('labels.txt')
    assert labels.read_text(encoding='utf-8') == 'é\nb\nc\n'
    assert json.loads((versions[name] / 'preprocessing.json').read_text()) == {
        'input': 'tensor' if name == 'h5' else 'pictures', 'size': [8, 8],
        'resize': {'method': 'bilinear', 'antialias': False, 'half_pixel_centers': False,
                   'align_corners': False},
        'channel_order': None, 'mean': [0], 'scale': [1 / 255], 'class_names': ['é', 'b', 'c']}
  served = serve(versions['saved_model'], 'images', images=np.zeros([1, 8, 8, 1]))
  assert served['labels'].tolist() == [['é'.encode(), b'b', b'c']]
  capsys.readouterr()
  compare = load_script('compare_exports').main
  for input_, formats in (
      ([], ['saved_model serving_default', 'saved_model pictures', 'saved_model images',
            'tflite pictures', 'h5', 'onnx pictures']),
      (['--export_input=tensor'], ['saved_model serving_default', 'saved_model examples', 'tflite',
                                   'h5', 'onnx'])):
    arguments = ['--flagfile={}'.format(model_dir / 'flags.txt'), *input_]
    code = compare(arguments)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])['rows']
    assert code == 0 and [row['format'] for row in rows] == formats
    assert all(row['verdict'] == 'ok' and row['labels'] == '8 of 8' and row['difference'] < 1e-5
               for row in rows)


def test_the_documented_clients_agree_with_predict(run_well, image_folders, tmp_path, capsys):
  """The Python code of docs/exporting.md, with PNGs of several sizes, for a network in color."""
  page = (ROOT / 'docs' / 'exporting.md').read_text(encoding='utf-8')
  random = np.random.RandomState(4)
  for index, size in enumerate([(90, 61), (9, 7), (16, 20), (1, 1), (14, 90)]):
    pixels = random.randint(0, 256, size + (3,)).astype(np.uint8) // (index + 1)
    Image.fromarray(pixels).save(str(tmp_path / '{}.png'.format(index)))
  model_dir = '--model_dir={}'.format(tmp_path / 'model')
  run_well('--mode=train', '--train_steps=2', '--batch_size=6', '--image_size=16,20',
           '--model=own_models:two_layers', '--preprocess=torch', model_dir,
           *image_flags(image_folders))
  done = run_well('--mode=predict', '--input={}/*.png'.format(tmp_path), model_dir)
  predictions = [json.loads(line) for line in done.out.splitlines()[:-1]]
  assert len(predictions) == 5
  for name in ('onnx', 'tflite'):
    version = run_well('--mode=export', '--export_format=' + name, model_dir,
                       '--export_dir={}'.format(tmp_path / name)).result['path']
    code, = (code for code in re.findall(r'```python\n(.*?)```', page, re.DOTALL)
             if 'Image.open' in code and 'model.' + name in code)
    capsys.readouterr()
    for prediction in predictions:
      exec(code.replace('runs/exports/{}/NUMBER'.format(name), version)
           .replace('image.png', prediction['file']), {})
      label, probability = capsys.readouterr().out.split()
      assert label == prediction['label']
      assert float(probability) == pytest.approx(prediction['probability'], abs=1e-4)


def test_the_documented_javascript_agrees_with_predict(run_well, tmp_path):
  modules = ROOT / '.venv-clients' / 'node_modules'
  if not modules.is_dir():
    pytest.skip('requires Node.js with onnxruntime-web, which scripts/install_clients installs')
  page = (ROOT / 'docs' / 'exporting.md').read_text(encoding='utf-8')
  code, = re.findall(r'```javascript\n(.*?)```', page, re.DOTALL)
  (tmp_path / 'node_modules').symlink_to(modules)
  for channels in (1, 3):
    folder = tmp_path / str(channels)
    pixels = np.random.RandomState(channels).randint(0, 256, (9, 7, channels)).astype(np.uint8)
    folder.mkdir()
    Image.fromarray(pixels.squeeze()).save(str(folder / 'image.png'))
    arguments = SYNTHETIC + ['--image_size=8,8,{}'.format(channels),
                             '--model_dir={}'.format(folder / 'model')]
    run_well('--mode=train', *arguments)
    version = run_well('--mode=export', '--export_format=onnx', *arguments,
                       '--export_dir={}'.format(folder / 'onnx')).result['path']
    done = run_well('--mode=predict', '--input={}'.format(folder / 'image.png'), *arguments)
    prediction = json.loads(done.out.splitlines()[0])
    (folder / 'predict.mjs').write_text(code.replace('runs/exports/onnx/NUMBER', version))
    label, probability = subprocess.check_output(
        ['node', 'predict.mjs'], cwd=str(folder), universal_newlines=True).split()
    assert label == prediction['label']
    assert float(probability) == pytest.approx(prediction['probability'], abs=1e-4)


def erf_and_bessel(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), layers.Lambda(tf.math.erf),
      layers.Lambda(tf.math.bessel_i0e), layers.Dense(num_classes, activation='softmax')])


def batch_norm_after_flatten(image_shape, num_classes):
  """The converter of TensorFlow 1.15 to TFLite changes what this model computes."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), layers.BatchNormalization(),
      layers.Dense(num_classes, activation='softmax')])


def test_what_cannot_be_exported(run_well, run_program, tmp_path, monkeypatch):
  exports = tmp_path / 'exports'
  for index, (extra, messages) in enumerate((
      (['--model=test_export_mode:erf_and_bessel'], {
          'tflite': 'cannot convert the model: unsupported operations: BesselI0e, Erf: give',
          'onnx': 'No Op registered for BesselI0e with domain_version of 13: give '}),
      (['--model=test_export_mode:batch_norm_after_flatten'], {
          'tflite': 'must equal those of the checkpoint to 0.0001: difference '}),
      (['--model=own_models:with_unsaveable_layer'], {'h5': 'cannot be saved as an .h5 file: --m'}),
      (['--image_size=8,8,2'], {'saved_model': 'requires one or three channels: the model takes'}),
      (['--model=own_models:two_layers', '--export_input=pictures'], {
          'h5': 'an .h5 file contains no preprocessing: --export_format=h5 --export_input='}))):
    arguments = SYNTHETIC + ['--model_dir={}'.format(tmp_path / str(index))] + extra
    run_well('--mode=train', *arguments)
    for format_, message in messages.items():
      assert fails(run_program(*arguments, '--mode=export', '--export_format=' + format_,
                               '--export_dir={}'.format(exports)), message)
      assert list(exports.iterdir()) == []
  # Before the training, and only where something is exported.
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *given: (
      None if name == 'onnx' else find(name, *given)))
  arguments = SYNTHETIC + ['--mode=train', '--model_dir={}'.format(tmp_path / 'none'),
                           '--export_format=onnx']
  assert fails(run_program(*arguments, '--export_dir={}'.format(exports)),
               'install it with `pip install estimator_train[onnx]`')
  assert not (tmp_path / 'none').exists()
  run_well(*arguments)


def test_wrong_together_with_the_model_dir(run_program, finished_run, tmp_path):
  (tmp_path / 'file').write_text('')
  exports = tmp_path / 'exports'
  for extra, message in (
      (['--model_dir={}/none'], 'there is no checkpoint in --model_dir: {}/none'),
      (['--dataset=synthetic', '--labels=a,b,c'], 'trained with other class names: T-shirt/top,'),
      (['--model=own_models:partly_frozen'], 'was trained with --model=own_models:two_layers, not'),
      (['--preprocess=tf'], 'was trained with --preprocess=unit, not --preprocess=tf'),
      (['--model=own_models:no_such'], 'names a function that does not exist'),
      # Before the training.
      (['--mode=train_and_evaluate', '--export_dir={}/file', '--model_dir={}/model',
        '--train_steps=1'], '--export_dir cannot be written to: {}/file')):
    done = run_program('--mode=export', '--model=own_models:two_layers', '--export_dir', exports,
                       '--model_dir', finished_run, *[text.format(tmp_path) for text in extra])
    assert fails(done, message.format(tmp_path))
  assert not exports.exists() or not list(exports.iterdir())
  assert not list((tmp_path / 'model').glob('model.ckpt-*'))
