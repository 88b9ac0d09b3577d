"""Training on image folders, end to end: pixels, caches, labels, classes and bad images."""

import json
import os

import pytest
from test_training_modes import fails

from estimator_train.training.plan import format_class_counts

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

TINY = '--model=own_models:two_layers'


@pytest.fixture
def folders(image_folders, tmp_path):
  return ['--dataset=image_folder', '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
          '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--image_size=24,24',
          '--batch_size=6', '--model_dir={}'.format(tmp_path / 'model')]


def test_train_and_evaluate(run_program, folders, tmp_path):
  done = run_program('--train_epochs=20', '--class_weights=balanced', *folders)
  assert done.code == 0, done.err
  assert '18 training images: A 12, B 6; the largest class has 2.0 times' in done.err
  assert 'compensates for that' not in done.err
  assert (tmp_path / 'model' / 'labels.txt').read_text() == 'A\nB\n'
  assert done.result['examples'] == 10 and done.result['global_step'] == 60
  assert done.result['accuracy'] >= 0.9  # A is dark and B is bright.
  again = run_program('--mode=evaluate', *folders[:1] + folders[2:])  # Without the training images.
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])


def test_class_weights_change_the_training_loss_only(run_program, folders, tmp_path):
  found = {}
  for weights in ('none', 'balanced'):
    done = run_program('--train_steps=1', '--learning_rate=1e-9', '--class_weights=' + weights,
                       *folders + ['--model_dir={}'.format(tmp_path / weights)])
    assert done.code == 0, done.err
    assert ('--class_weights=balanced compensates for that' in done.err) == (weights == 'none')
    found[weights] = done.result
  assert found['none']['train_loss'] != pytest.approx(found['balanced']['train_loss'], rel=1e-4)
  assert found['none']['average_loss'] == pytest.approx(found['balanced']['average_loss'], rel=1e-5)


@pytest.mark.parametrize('cache', ['memory', 'folder'])
def test_cached(run_program, folders, tmp_path, cache):
  cache = cache if cache == 'memory' else tmp_path / 'cache'
  # Unlike Adam's, the first updates of SGD are proportional to the rounding of the pixels.
  plain = run_program('--train_steps=4', '--optimizer=sgd', *folders)
  done = run_program('--train_steps=4', '--optimizer=sgd', '--cache={}'.format(cache),
                     *folders + ['--model_dir={}'.format(tmp_path / 'cached')])
  assert done.code == 0, done.err
  assert done.result['train_loss'] == pytest.approx(plain.result['train_loss'], abs=1e-3)
  assert done.result['accuracy'] == plain.result['accuracy']


def test_many_classes_are_a_short_line():
  names = ['c{:04}'.format(index) for index in range(3000)]
  counts = [7] * 2998 + [9, 2]
  assert format_class_counts(names, counts) == '3000 classes, from c2999 2 to c2998 9'
  assert format_class_counts(names[:20], counts[:20]).endswith(', c0019 7')


def test_other_labels_than_trained_with(run_program, folders):
  assert run_program('--mode=train', '--train_steps=1', *folders).code == 0
  for mode in ('train', 'evaluate'):
    assert fails(run_program('--mode=' + mode, '--train_steps=2', '--labels=B,A', *folders),
                 'the model of --model_dir was trained with other class names: '
                 'A,B before and B,A now')


@pytest.fixture
def bad_image(image_folders):
  path = image_folders / 'train' / 'A' / 'half of "one".jpeg'
  whole = (image_folders / 'train' / 'A' / '0.jpeg').read_bytes()
  path.write_bytes(whole[:len(whole) // 2])
  return path


@pytest.mark.parametrize('extra', [[], ['--cache=memory'], ['--num_cpu_replicas=2']])
def test_a_bad_image_is_named(run_program, folders, bad_image, extra, tmp_path):
  done = run_program('--mode=train', '--train_epochs=2', *folders + extra)
  assert fails(done, 'an image cannot be decoded: {} (Invalid JPEG data'.format(bad_image))
  assert 'Traceback' not in done.err


def test_a_bad_image_to_evaluate_on(run_program, folders, bad_image, image_folders):
  bad_image.rename(image_folders / 'test' / 'A' / 'bad.jpeg')
  assert fails(run_program('--train_steps=1', *folders),
               'an image cannot be decoded: {}/test/A/bad.jpeg ('.format(image_folders))


def test_a_bad_image_with_features(run_program, folders, bad_image):
  done = run_program('--mode=train', '--train_steps=1', '--cache_features',
                     '--model=own_models:frozen_first', *folders)
  assert fails(done, 'an image cannot be decoded: {} ('.format(bad_image))


def test_skip(run_program, folders, bad_image, image_folders, tmp_path):
  (image_folders / 'test' / 'B' / 'text.jpeg').write_text('this is no image')
  done = run_program('--train_epochs=2', '--on_bad_image=skip', '--max_bad_images=0.1', *folders)
  assert done.code == 0, done.err
  assert done.result['examples'] == 10 and done.result['global_step'] == 6
  assert [image['file'] for image in done.result['skipped_images']] == [
      str(bad_image), str(image_folders / 'test' / 'B' / 'text.jpeg')]
  assert 'Invalid JPEG' in done.result['skipped_images'][0]['reason']
  memory = json.loads((tmp_path / 'model' / 'skipped_images.json').read_text())
  assert [len(memory[split]['bad']) for split in ('train', 'test')] == [1, 1]


def test_too_many_to_skip(run_program, folders, bad_image):
  assert fails(run_program('--train_epochs=2', '--on_bad_image=skip', *folders),
               '1 of 19 with --max_bad_images=0.01, the first is ' + str(bad_image))


@pytest.mark.parametrize('name', ['broken_png_renamed', 'jpeg_12bit', 'text_renamed',
                                  'truncated_half', 'zero_bytes'])
def test_damaged_images_are_named(run_program, folders, image_folders, awkward_images, name):
  bad = awkward_images / (name + '.jpeg')
  (image_folders / 'train' / 'B' / bad.name).write_bytes(bad.read_bytes())
  assert fails(run_program('--mode=train', '--train_epochs=1', *folders), bad.name)


ODD_NAMES = [b'a  b.jpeg', b'q\'"$`.jpeg', b'\xff\xfe.jpeg', b'n' * 250 + b'.jpeg',
             b'n\n\x1b[2Jl.jpeg']


def test_fewer_images_than_a_batch_of_odd_names(run_program, folders, image_folders):
  """Epochs follow each other within a batch; every image is evaluated once."""
  for split in ('train', 'test'):
    for name in ODD_NAMES:
      whole = image_folders / split / 'A' / '0.jpeg'
      os.link(str(whole), os.path.join(os.fsencode(str(whole.parent)), name))
  done = run_program('--train_steps=2', '--num_cpu_replicas=2', TINY,
                     *folders + ['--batch_size=64'])
  assert done.code == 0, done.err
  assert done.result['global_step'] == 2 and done.result['examples'] == 15


def test_bad_images_of_odd_names(run_program, folders, image_folders):
  for name in ODD_NAMES:
    path = os.path.join(os.fsencode(str(image_folders)), b'train', b'A', name)
    with open(path, 'wb') as file:
      file.write(b'this is no image')
    done = run_program('--mode=train', '--train_epochs=1', '--on_bad_image=skip',
                       '--max_bad_images=0', *folders)
    shown = os.fsdecode(name).replace('\n', '\\n').replace('\x1b', '\\x1b').encode(
        errors='backslashreplace').decode()
    assert fails(done, '/train/A/{} ('.format(shown))
    assert len([line for line in done.err.splitlines() if 'error: ' in line]) == 1
    if b'\n' not in name:
      os.remove(path)
  assert fails(run_program('--mode=train', '--train_epochs=1', TINY, *folders),
               'an image cannot be decoded: {}/train/A/n\\n\\x1b'.format(image_folders))


def test_awkward_images_train(run_program, folders, image_folders, awkward_images):
  """Those that decode: among grey images, in colour, CMYK, 16 bit, GIF, progressive, rotated."""
  for name in ('cmyk', 'exif_orientation_6', 'gif_renamed', 'png16_gray_renamed', 'progressive'):
    (image_folders / 'train' / 'B' / (name + '.jpeg')).write_bytes(
        (awkward_images / (name + '.jpeg')).read_bytes())
  done = run_program('--mode=train', '--train_epochs=1', '--model=own_models:two_layers', *folders)
  assert done.code == 0, done.err


@pytest.mark.parametrize('extra, message', [
    (['--cache_features'], 'needs frozen layers'),
    (['--weights=imagenet'], 'there are no ImageNet weights for this model'),
    (['--trainable_layers=3'], '--trainable_layers requires a pretrained network'),
    (['--train_pattern=/none/*.jpeg'], '--train_pattern matches no file: --train_pattern=/none/'),
    (['--labels=A,B,C'], 'a class has no training images: C'),
    (['--labels=A'], 'at least two classes'),
])
def test_what_cannot_be(run_program, folders, extra, message, tmp_path):
  assert fails(run_program('--train_steps=1', *folders + extra), message)
  assert not (tmp_path / 'model' / 'flags.txt').exists()


@pytest.mark.parametrize('extra, message', [
    (['--dataset=fashion_mnist_sample', '--cache=folder'], 'only image files can be cached in'),
    (['--dataset=fashion_mnist_sample', '--preprocess=caffe'], '--preprocess=caffe requires three'),
    (['--dataset=synthetic', '--class_weights=balanced'],
     '--class_weights and --cache_features require a finite data set: --dataset=synthetic is '),
])
def test_what_is_for_images_in_folders(run_program, extra, message, tmp_path):
  assert fails(run_program('--train_steps=1', '--model_dir={}'.format(tmp_path / 'model'), *extra),
               message)
  assert not (tmp_path / 'model' / 'flags.txt').exists()


def test_another_preprocessing_than_trained_with(run_program, folders):
  assert run_program('--mode=train', '--train_steps=1', *folders).code == 0
  assert fails(run_program('--mode=evaluate', '--preprocess=tf', *folders),
               'was trained with --preprocess=unit, not --preprocess=tf')
