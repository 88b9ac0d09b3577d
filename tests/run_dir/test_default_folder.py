"""The folder of a training run without `--model_dir`."""

import contextlib
import os

import pytest

from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, default_folder, lock
from estimator_train.settings import Settings, command_line

NAME = 'runs/fashion_mnist_sample-fashion_cnn'


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
  monkeypatch.chdir(str(tmp_path))


def make_settings(**flags):
  return Settings(**{'train_epochs': 1, **flags})


def record(folder, **flags):
  """Records a run as a training does."""
  run_dir = RunDir(folder)
  run_dir.make()
  run_dir.record_flags(make_settings(model_dir=folder, **flags))
  return run_dir


def choose(**flags):
  chosen = default_folder.choose_folder(make_settings(**flags))
  return chosen.path, chosen.is_resumed, chosen.reason


def edit_flags(folder, old, new):
  path = os.path.join(folder, 'flags.txt')
  with open(path) as file:
    text = file.read()
  assert text.count(old) == 1
  with open(path, 'w') as file:
    file.write(text.replace(old, new))


def test_the_same_command_resumes_and_another_gets_the_next_number():
  assert choose() == (NAME, False, 'new run in ' + NAME)
  os.makedirs(NAME + '/logs')  # As of a run that failed while it started.
  assert choose() == (NAME, False, 'new run in ' + NAME)
  record(NAME)
  # The output of a run, and where a function of the library runs it, make no difference.
  assert choose(verbosity=1, step_timeout_secs=0)[:2] == (NAME, True)
  assert choose(train_epochs=2, seed=3) == (
      NAME + '-2', False, 'new run in {0}-2, because {0} has a run with other flags '
      '(--train_epochs=1 before and --train_epochs=2 now, and 1 more); to continue that run, give '
      '--model_dir={0}'.format(NAME))
  record(NAME + '-2', train_epochs=2)
  record(NAME + '-10', train_epochs=3)
  assert choose()[:2] == (NAME, True) and choose(train_epochs=2)[:2] == (NAME + '-2', True)
  assert choose(train_epochs=4)[:2] == (NAME + '-11', False)
  # Continuing a run with --model_dir records its new length, so it is no longer the same command.
  record(NAME, train_epochs=9)
  assert choose()[:2] == (NAME + '-11', False) and choose(train_epochs=9)[:2] == (NAME, True)


@pytest.mark.parametrize('given, is_described', [
    ([], True), (['--dataset=fashion_mnist_sample'], False), (['--model=fashion_cnn'], False),
    (['--flagfile=quickstart'], False)])
def test_a_new_run_with_default_data_is_described(given, is_described):
  record('runs/int')
  for name, question in (('runs/intt', '; did you mean runs/int?'), ('other', ''),
                         ('runs/int', ''), (NAME + '-2', '')):
    settings = command_line.parse(['--model_dir=' + name, '--train_epochs=3', *given])
    assert default_folder.describe_run_with_default_data(settings) == (
        name + ' has no run: training fashion_cnn on fashion_mnist_sample (the defaults) in a new '
        'one' + question if is_described and name in ('runs/intt', 'other') else None)


def test_runs_of_other_versions():
  record(NAME)
  edit_flags(NAME, '# --early_stopping_epochs is not set\n', '')  # A flag that did not exist.
  edit_flags(NAME, '--prefetch=2\n', '--obsolete_flag=2\n')
  assert choose()[:2] == (NAME, True)
  assert choose(prefetch=3)[:2] == (NAME + '-2', False)
  edit_flags(NAME, '--shuffle_buffer=5000\n', '--shuffle_buffer=1000\n')  # Another default.
  assert '(--shuffle_buffer=1000 before and --shuffle_buffer=5000 now)' in choose()[2]


def test_folders_that_cannot_be_resumed():
  os.makedirs(NAME)
  with open(os.path.join(NAME, 'checkpoint'), 'w') as file:  # Of any other Estimator.
    file.write('model_checkpoint_path: "model.ckpt-9"\n')
  assert choose()[0] == NAME + '-2' and ' has a checkpoint without flags.txt; ' in choose()[2]
  record(NAME)
  with open(os.path.join(NAME, 'flags.txt'), 'wb') as file:
    file.write(bytes(9))
  assert choose()[0] == NAME + '-2' and ' has a damaged flags.txt; ' in choose()[2]
  with open(NAME + '-2', 'w'):
    assert choose()[0] == NAME + '-3'


@pytest.mark.parametrize('dataset, model, name', [
    ('examples.tabular:dataset', 'examples.tabular:model',
     'examples.tabular.dataset-examples.tabular.model'),
    ('mnist', 'm' * 99 + ':' + 'f' * 60, 'mnist-' + 'f' * 40)])
def test_names_are_safe(dataset, model, name):
  assert choose(dataset=dataset, model=model)[0] == 'runs/' + name


def lock_chosen(**flags):
  """Returns the folder, and a stack that keeps it locked."""
  stack = contextlib.ExitStack()
  return default_folder.lock_chosen_folder(make_settings(**flags), stack), stack


def test_commands_that_start_at_the_same_time_never_share_a_folder():
  first, lock_of_first = lock_chosen()
  with pytest.raises(UserError, match='another run is writing to this --model_dir'):
    lock_chosen()
  second, lock_of_second = lock_chosen(seed=2)
  third, lock_of_third = lock_chosen(seed=3)
  assert [first, second, third] == [NAME, NAME + '-2', NAME + '-3']
  record(first)
  with pytest.raises(UserError, match='another run is writing to this --model_dir'):
    lock_chosen()
  for each in (lock_of_first, lock_of_second, lock_of_third):
    each.close()
  assert os.listdir('runs') == [os.path.basename(NAME)], 'nothing is left of the others'
  assert lock_chosen()[0] == NAME


def record_initial_state(folder, *names, **flags):
  run_dir = record(folder, **flags)
  os.makedirs(run_dir.path_to('keras'), exist_ok=True)
  for name in ('model.ckpt-0.index', 'model.ckpt-0.data-00000-of-00001', 'labels.txt', 'data.json',
               'batch_sizes.json', 'events.out.tfevents.1.vm', 'keras/keras_model.ckpt.index',
               'skipped_images.json', *names):
    with open(run_dir.path_to(name), 'w'):
      pass
  with open(run_dir.path_to('checkpoint'), 'w') as file:
    file.write('model_checkpoint_path: "model.ckpt-0"\n')
  return run_dir


def test_a_run_without_steps_is_replaced(caplog):
  caplog.set_level('INFO', 'estimator_train')
  record_initial_state(NAME)
  folder, stack = lock_chosen()
  with stack:
    assert folder == NAME and len(os.listdir(NAME)) == 11, 'the same command resumes'
  with contextlib.closing(lock_chosen()[1]):  # Another process is starting the run.
    folder, stack = lock_chosen(seed=2)
    with stack:
      assert folder == NAME + '-2'
  caplog.clear()
  folder, stack = lock_chosen(seed=2)
  with stack:
    assert folder == NAME and sorted(os.listdir(NAME)) == ['run.lock', 'skipped_images.json']
  assert caplog.messages == ['new run in {}, in place of a run with other flags that ended before '
                             'its first step'.format(NAME)]


@pytest.mark.parametrize('name', ['model.ckpt-9.index', 'best.h5', 'metrics.jsonl', 'notes.txt'])
def test_a_run_with_anything_else_is_not_replaced(name):
  record_initial_state(NAME, name)
  folder, stack = lock_chosen(seed=2)
  with stack:
    assert folder == NAME + '-2' and len(os.listdir(NAME)) == 11


def test_a_run_whose_last_checkpoints_are_elsewhere_is_not_replaced():
  with open(record_initial_state(NAME).path_to('checkpoint'), 'w') as file:
    file.write('model_checkpoint_path: "model.ckpt-9"\n')
  folder, stack = lock_chosen(seed=2)
  with stack:
    assert folder == NAME + '-2'


def test_a_run_that_ends_before_its_folder_is_locked(monkeypatch):
  """The folder was free when it was chosen, but then has another run."""
  lock_folder = lock.lock_folder

  def lock_after_another_run(path, **arguments):
    monkeypatch.setattr(default_folder, 'lock_folder', lock_folder)
    record_initial_state(path, 'model.ckpt-1.index', seed=2)
    return lock_folder(path, **arguments)

  monkeypatch.setattr(default_folder, 'lock_folder', lock_after_another_run)
  folder, stack = lock_chosen()
  with stack:
    assert folder == NAME + '-2'
