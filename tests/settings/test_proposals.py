"""The commands that messages propose have only the flags that the user gave; from Python, calls."""

import pytest

from estimator_train.settings import Settings, command_line, proposals, to_training_arguments
from estimator_train.system.library_call import library_call

LR_FINDER = '--mode=lr_finder --model_dir=lr --train_steps=50 '


@pytest.mark.parametrize('given, expected', [
    ('--model=mnist_dense --lr_schedule=cosine',
     '--model=mnist_dense --lr_schedule=cosine --learning_rate=0.01 --train_epochs=10'),
    ('--nogpu_memory_growth --checkpoint=latest --json',
     '--gpu_memory_growth=false --learning_rate=0.01 --train_epochs=10'),
    # A folder has a length of training and further defaults, and its files are found again.
    ('--dataset=FOLDER', '--dataset=FOLDER --learning_rate=0.01'),
    # The flags of a flagfile are not repeated, and stay unset.
    ('--flagfile=quickstart', '--flagfile=quickstart --learning_rate=0.01'),
    ('--flagfile=a.flags --seed 3', '--flagfile=a.flags --seed=3 --learning_rate=0.01 '
     '--train_epochs=10')])
def test_the_command_to_train_after_another_mode(given, expected, tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))
  (tmp_path / 'a.flags').write_text('--batch_size=3\n--model_dir=other\n')
  folder = tmp_path / 'photos'
  for name in ('a', 'b'):
    (folder / name).mkdir(parents=True)
    for index in range(9):
      (folder / name / '{}.png'.format(index)).write_bytes(b'x')
  given, expected = (text.replace('FOLDER', str(folder)) for text in (given, expected))
  settings = command_line.parse((LR_FINDER + given).split())
  assert ' '.join(to_training_arguments(settings, model_dir=None, learning_rate=.01)) == expected
  command_line.parse(expected.split())


def test_flags_of_a_flagfile_that_a_proposal_omits_are_unset(tmp_path):
  path = tmp_path / 'a.flags'
  path.write_text('--dataset=image_folder\n--train_pattern=x\n--labels=a,b\n--train_steps=3\n')
  settings = command_line.parse(['--mode=audit', '--model_dir=y', '--flagfile={}'.format(path)])
  assert to_training_arguments(settings, dataset='tfrecord', labels=(), data_dir=None) == [
      '--flagfile={}'.format(path), '--model_dir=y', '--dataset=tfrecord', '--labels=']


def test_what_python_callers_gave():
  settings = Settings(model='mnist_dense', model_dir='x').evolve(seed=3)
  settings = settings.with_values_of_program(step_timeout_secs=0, preprocess='unit')
  assert settings.step_timeout_secs == 0
  assert to_training_arguments(settings, model_dir=None, learning_rate=.1) == [
      '--model=mnist_dense', '--seed=3', '--learning_rate=0.1', '--train_epochs=10']


def test_calls_in_place_of_commands():
  with library_call():
    for arguments, expected in (
        (['--image_size=3,4', '--labels=a,b', '--gpu_memory_growth=false', '--learning_rate=1e-2'],
         "train(image_size=(3, 4), labels=('a', 'b'), gpu_memory_growth=False, "
         'learning_rate=0.01)'),
        (['--mode=export', '--model_dir=5=6'], "export(model_dir='5=6')"),
        (['--mode=train', '--seed=3'], "train(mode='train', seed=3)")):
      assert proposals.make_command(*arguments) == expected
    assert proposals.make_predict_command('x', True) == "predict(model_dir='x', input=IMAGES)"
    assert proposals.make_predict_command('x', False, 'best') == (
        "predict(model_dir='x', checkpoint='best', input='ROWS.csv')")
  assert proposals.make_predict_command('x', True).endswith(
      ' --mode=predict --model_dir=x --input=IMAGES')
  assert proposals.make_predict_command('x', False, 'best').endswith(
      ' --mode=predict --model_dir=x --checkpoint=best --input=ROWS.csv')
