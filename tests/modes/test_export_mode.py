"""`--mode=export` and `--export_dir`: what is exported predicts what the checkpoint does."""

import importlib.util
import json
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import ROOT, run_process
from mode_runs import fails, image_flags
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from estimator_train.data.opening import make_eval_input_fn
from estimator_train.exporting import verification
from estimator_train.settings import command_line


def estimators_predictions(arguments, count):
  """Returns the Estimator's outputs of the checkpoint for the first test examples."""
  settings = command_line.parse(arguments + ['--mode=evaluate', '--num_cpu_replicas=1'])
  run, model = training_runs.prepare(settings)
  make = make_eval_input_fn(run.data.test, settings, model.one_hot, count)
  predictions = model.estimator.predict(lambda: make().take(1))
  return np.array([list(found.values())[0] for found in predictions])


def serve(version, signature='serving_default', **arrays):
  """Returns the outputs of a signature by name, as does a process that knows no more."""
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.loader.load(session, ['serve'], str(version))
    signature = loaded.signature_def[signature]
    return session.run({name: info.name for name, info in signature.outputs.items()},
                       {signature.inputs[name].name: array for name, array in arrays.items()})


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
  version, = exports.iterdir()
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
  (model_dir / 'labels.txt').unlink()
  assert fails(run_program(*again), 'the classes are unknown: no labels.txt in')
  assert len(list(exports.iterdir())) == 2


SYNTHETIC = ['--dataset=synthetic', '--image_size=8,8', '--labels=é,b,c', '--batch_size=4',
             '--train_steps=1', '--model=mnist_dense']  # It has logits.


def test_every_format(run_well, tmp_path, monkeypatch):
  """ONNX and TFLite files are compared with the checkpoint before an export is complete."""
  arguments = SYNTHETIC + ['--model_dir={}'.format(tmp_path / 'model')]
  run_well('--mode=train', *arguments)
  monkeypatch.setenv('PATH', '/usr/bin:/bin')  # As in an environment that is not activated.
  versions = []
  for format_, input_, names in (
      ('h5', 'tensor', {}), ('tflite', 'pictures', {}),
      ('onnx', 'pictures', {'inputs': ['pictures'], 'outputs': ['probabilities']}),
      ('saved_model', 'tensor', {'signatures': ['serving_default', 'examples']}),
      ('saved_model', 'pictures', {'signatures': ['serving_default', 'pictures', 'images']})):
    done = run_well(*arguments, '--mode=export', '--export_format=' + format_,
                    '--export_input=' + input_, '--export_dir={}'.format(tmp_path / format_))
    version = max((tmp_path / format_).iterdir())
    assert done.out.count('\n') == 1
    assert done.result == dict(
        names, mode='export', model_dir=str(tmp_path / 'model'), path=str(version), format=format_,
        checkpoint=str(tmp_path / 'model' / 'model.ckpt-1'), global_step=1)
    labels, = version.rglob('labels.txt')
    assert labels.read_text(encoding='utf-8') == 'é\nb\nc\n'
    assert json.loads((version / 'preprocessing.json').read_text()) == {
        'input': input_, 'size': [8, 8],
        'resize': {'method': 'bilinear', 'antialias': False, 'half_pixel_centers': False,
                   'align_corners': False},
        'channel_order': None, 'mean': [0], 'scale': [1 / 255], 'class_names': ['é', 'b', 'c']}
    versions.append(version)
  tensor_version, pictures_version = versions[-2:]
  for version in versions[-2:]:  # The host that serves the model may have GPUs.
    meta_graph, = saved_model_pb2.SavedModel.FromString(
        (version / 'saved_model.pb').read_bytes()).meta_graphs
    assert {node.device for node in meta_graph.graph_def.node} == {''}
  pictures = np.random.RandomState(3).randint(0, 256, [4, 8, 8, 1]).astype(np.uint8)
  expected = serve(pictures_version, 'pictures', pictures=pictures)
  assert expected['labels'].tolist() == [['é'.encode(), b'b', b'c']] * 4
  for served in (serve(pictures_version, 'images', images=pictures / 255),
                 serve(tensor_version, images=pictures / 255)):
    assert_close(served['probabilities'], expected['probabilities'])


@pytest.mark.parametrize('language, format_, channels', [
    ('python', 'onnx', 3), ('python', 'tflite', 1), ('javascript', 'onnx', 1),
    ('javascript', 'onnx', 3)])
def test_the_documented_clients_agree_with_predict(run_well, tmp_path, capsys, language, format_,
                                                   channels):
  """The code of docs/exporting.md, with PNGs of several sizes."""
  modules = ROOT / '.venv-clients' / 'node_modules'
  if language == 'javascript' and not modules.is_dir():
    pytest.skip('requires Node.js with onnxruntime-web, which scripts/install_clients installs')
  (tmp_path / 'node_modules').symlink_to(modules)
  random = np.random.RandomState(4)
  for index, size in enumerate([(90, 61), (9, 7), (1, 1), (14, 90)]):
    pixels = random.randint(0, 256, (*size, 3)).astype(np.uint8) // (index + 1)
    Image.fromarray(pixels).convert('RGB' if channels == 3 else 'L').save(
        str(tmp_path / '{}.png'.format(index)))
  if language == 'python':
    Image.fromarray(random.randint(0, 2 ** 16, (20, 30)).astype(np.uint16)).save(
        str(tmp_path / '16_bits.png'))
  arguments = [*SYNTHETIC, '--image_size=8,8,{}'.format(channels), '--preprocess=tf',
               '--model_dir={}'.format(tmp_path / 'model')]
  run_well('--mode=train', *arguments)
  version = run_well('--mode=export', '--export_format=' + format_, *arguments,
                     '--export_dir={}'.format(tmp_path / 'exports')).result['path']
  done = run_well('--mode=predict', '--input={}/*.png'.format(tmp_path), *arguments)
  predictions = [json.loads(line) for line in done.out.splitlines()[:-1]]
  assert len(predictions) == (5 if language == 'python' else 4)
  page = (ROOT / 'docs' / 'exporting.md').read_text(encoding='utf-8')
  documented = 'runs/exports/{}/NUMBER'.format(format_)
  code, = (code for code in re.findall('```{}\n(.*?)```'.format(language), page, re.DOTALL)
           if documented in code and 'image.png' in code)
  for prediction in predictions:
    client = code.replace(documented, version).replace('image.png', prediction['file'])
    if language == 'python':
      exec(client, {})
      out = capsys.readouterr().out
    else:
      (tmp_path / 'client.mjs').write_text(client)
      out = run_process('node', 'client.mjs', cwd=tmp_path, check=True).stdout
    label, probability = out.split()
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
      (['--image_size=8,8,2'], {'saved_model': 'requires one or three channels: the model'}))):
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


@pytest.mark.parametrize('flags, num_examples', [
    ('--dataset=own_examples:two_inputs --model=own_examples:two_outputs', 37),
    ('--dataset=own_examples:weighted --model=own_examples:one_output --mode=train', 37),
    ('--dataset=own_examples:text --model=own_examples:word_classifier', 37),
    ('--dataset=fashion_mnist_sample --model=mnist_dense', 256),
    ('--dataset=fashion_mnist_sample --model=mnist_dense --export_input=tensor', 256)])
def test_an_export_after_training_is_verified_with_examples_of_the_data(
    run_well, tmp_path, monkeypatch, flags, num_examples):
  monkeypatch.setattr(verification, '_MAX_SECS', 1000.)
  compared = []
  verify = verification.verify
  monkeypatch.setattr(verification, 'verify', lambda batches, *more: (
      compared.extend(batches), verify(batches, *more)))
  run_well(*flags.split(), '--train_steps=1', '--batch_size=8', '--export_format=onnx',
           '--model_dir={}'.format(tmp_path / 'run'), '--export_dir={}'.format(tmp_path / 'onnx'))
  sizes = [len(next(iter(batch.inputs.values()))) for batch in compared]
  assert sizes[:2] == [1, 3] and sum(sizes) == 4 + 256 + num_examples
