"""Training on image folders, end to end: pixels, caches, labels, classes and bad images."""

import json

import pytest
from mode_runs import fails, image_flags


@pytest.fixture
def folders(image_folders, tmp_path):
  return image_flags(image_folders) + ['--image_size=24,24', '--batch_size=6',
                                       '--model_dir={}'.format(tmp_path / 'model')]


def test_train_and_evaluate(run_well, folders, image_folders, tmp_path):
  done = run_well('--train_epochs=20', '--class_weights=balanced', '--cache=memory', *folders)
  assert '18 training images: A 12, B 6; the largest class has 2 times' in done.err
  assert 'compensates for that' not in done.err
  assert (tmp_path / 'model' / 'labels.txt').read_text() == 'A\nB\n'
  assert done.result['examples'] == 10 and done.result['global_step'] == 60
  assert done.result['accuracy'] >= 0.9  # A is dark and B is bright.
  report = tmp_path / 'model' / 'report'
  # The graph lacks the number of channels of cached images.
  assert (report / 'train_batch.png').exists() and (report / 'sample-00.png').exists()
  assert 0.9 <= done.result['roc_auc'] <= 1 and json.loads(
      (tmp_path / 'model' / 'evaluation.json').read_text())['threshold_curve']
  samples = json.loads((report / 'samples.json').read_text())['samples']
  assert {sample['file'] for sample in samples} == {
      str(path) for path in image_folders.glob('test/*/*.jpeg')}
  del folders[1]  # Evaluation needs no training images.
  again = run_well('--mode=evaluate', *folders)
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])


def test_a_folder_as_data_set(run_well, image_folders, tmp_path):
  (image_folders / 'raw').mkdir()
  model_dir = '--model_dir={}'.format(tmp_path / 'model')

  def train(folder, *arguments):
    return run_well('--dataset={}'.format(folder), '--model=own_models:two_layers',
                    '--image_size=8,8', '--train_steps=2', model_dir, *arguments)

  done = train(image_folders, '--batch_size=19')
  assert 'warning: --batch_size=19 is more than the 18 training examples: each step' in done.err
  assert 'training on {0}/train, evaluating on {0}/test; not used: raw\n'.format(
      image_folders) in done.err
  assert 'caching a uint8 array' in done.err and done.result['examples'] == 10
  assert '--preprocess=unit\n' in (tmp_path / 'model' / 'flags.txt').read_text()
  model_dir += '_of_split'
  done = train(image_folders / 'train')
  assert 'evaluating on about 20 % of the images of each class, which are not trained' in done.err
  again = run_well('--mode=evaluate', model_dir)
  assert again.result['examples'] == done.result['examples'] < 9
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])


def test_a_bad_image_is_named_or_skipped(run_well, run_program, folders, image_folders, tmp_path):
  bad, text = image_folders / 'train' / 'A' / 'half of "one".jpeg', image_folders / 'test/B/t.jpeg'
  whole = (image_folders / 'train' / 'A' / '0.jpeg').read_bytes()
  bad.write_bytes(whole[:len(whole) // 2])
  for number, extra in enumerate(([], ['--cache=memory'], ['--num_cpu_replicas=2'],
                                  ['--cache_features', '--model=own_models:frozen_first'])):
    done = run_program('--mode=train', '--train_epochs=2', *folders, *extra,
                       '--model_dir={}'.format(tmp_path / str(number)))
    assert fails(done, 'an image cannot be decoded: {} (Invalid JPEG data'.format(bad))
    assert 'Traceback' not in done.err
  skip = ['--train_epochs=2', '--on_bad_image=skip']
  assert fails(run_program(*folders, *skip),
               '1 of 19 with --max_bad_images=0.01, the first is {}'.format(bad))
  text.write_text('this is no image')
  done = run_well(*folders, *skip, '--max_bad_images=0.1')
  assert done.result['examples'] == 10 and done.result['global_step'] == 6
  assert [image['file'] for image in done.result['skipped_images']] == [str(bad), str(text)]
  assert 'Invalid JPEG' in done.result['skipped_images'][0]['reason']
  assert '\n  skipped     2 bad images\n' in done.err
  assert json.loads((tmp_path / 'model' / 'throughput.json').read_text())['skipped_images'] == {
      'count': 2, 'files': [str(bad), str(text)]}
  evaluated = run_well('--mode=evaluate', '--model_dir={}'.format(tmp_path / 'model'))
  assert '\n  skipped     1 bad image\n' in evaluated.err, 'that of the test images'
  memory = json.loads((tmp_path / 'model' / 'skipped_images.json').read_text())
  assert [len(memory[split]['bad']) for split in ('train', 'test')] == [1, 1]
  bad.unlink()
  assert fails(run_program('--train_steps=7', *folders),
               'an image cannot be decoded: {} ('.format(text))


def test_fewer_images_than_a_batch(run_well, folders):
  """Epochs follow each other within a batch; every image is evaluated once."""
  done = run_well('--train_steps=2', '--num_cpu_replicas=2', *folders,
                  '--model=own_models:two_layers', '--batch_size=64')
  assert done.result['global_step'] == 2 and done.result['examples'] == 10
