"""The names of the user's functions, by which other processes find them and tell runs apart."""

import os
import sys
import types

import pytest

from estimator_train import Settings, UserError
from estimator_train.run_dir import RunDir, default_folder
from estimator_train.settings import command_line, user_code


@pytest.fixture
def main(monkeypatch, tmp_path):
  """Makes this process that of a script, `python -m MODULE` or a notebook; returns its settings."""
  monkeypatch.chdir(str(tmp_path))
  for name in ('estimator_train.__main__', 'mine'):
    monkeypatch.delitem(sys.modules, name, raising=False)

  def start(path=None, module=None, name='__main__'):
    script = types.ModuleType(name)
    exec('def build():\n  pass\ndef describe():\n  return 7\n', vars(script))
    if path is not None:
      script.__file__ = path
      os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
      with open(path, 'w'):
        pass
    if module is not None:
      script.__spec__ = types.SimpleNamespace(name=module)
    monkeypatch.setattr(user_code, '_SESSION', 'session of {}'.format(id(script)))
    monkeypatch.setitem(sys.modules, '__main__', script)
    monkeypatch.setitem(sys.modules, name, script)
    return Settings(model=script.build, dataset=script.describe,
                    train_epochs=1).for_mode('train_and_evaluate')

  return start


def train(settings):
  """Records a run as a training does; returns its folder, and whether it is resumed."""
  folder = default_folder.choose_folder(settings)
  run_dir = RunDir(folder.path)
  run_dir.make()
  run_dir.record_flags(settings.evolve(model_dir=folder.path))
  return folder.path[len('runs/'):], folder.is_resumed


def call(settings):
  return user_code.call_function('dataset', settings.dataset, '')


@pytest.mark.parametrize('path, module, name', [
    ('mine.py', None, 'mine'), ('dir/mine.py', None, 'mine'), ('my-script.py', None, 'my-script'),
    ('pkg/mine.py', 'pkg.mine', 'pkg.mine'), ('pkg/__main__.py', 'pkg.__main__', 'pkg.__main__'),
    ('v1.2.py', None, '__main__'), ('script', None, '__main__'), (None, None, '__main__'),
    ('time.py', None, '__main__'), ('json.py', None, '__main__')])
def test_functions_of_a_script_have_the_name_of_its_module(main, path, module, name):
  """A script that other processes cannot import is like a notebook."""
  for name_of_main in ('__main__', '__mp_main__'):  # The latter is that of a spawned child.
    settings = main(path, module, name_of_main)
    assert (settings.model.model, settings.dataset) == (name + ':build', name + ':describe')
    assert call(settings) == 7


def test_scripts_with_equal_names_of_functions_are_other_commands(main):
  assert train(main('a.py')) == ('a.describe-a.build', False)
  assert train(main('b.py')) == ('b.describe-b.build', False)
  assert train(main(os.path.abspath('a.py'))) == ('a.describe-a.build', True)
  with open('runs/a.describe-a.build/flags.txt') as file:
    assert 'functions of' not in file.read()
  assert train(main('one/a.py')) == ('a.describe-a.build-2', False)
  assert train(main('two/a.py')) == ('a.describe-a.build-3', False)
  assert train(main('one/a.py')) == ('a.describe-a.build-2', True)
  assert train(main('v1.2.py')) == ('describe-build', False)
  assert train(main('v1.3.py')) == ('describe-build-2', False)
  assert train(main('v1.2.py')) == ('describe-build', True)
  assert train(main('pkg/mine.py', 'pkg.mine'))[0] == 'pkg.mine.describe-pkg.mine.build'
  assert train(main('__main__.py', 'pkg.__main__'))[0] == 'pkg.describe-pkg.build'


def test_the_program_resumes_the_run_of_a_script_in_the_current_folder(main, monkeypatch):
  folder, _ = train(main('mine.py'))
  main('estimator_train/__main__.py', 'estimator_train.__main__')
  assert train(command_line.parse(['--dataset=mine:describe', '--model=mine:build',
                                   '--train_epochs=1'])) == (folder, True)
  main('bin/estimator-train')
  monkeypatch.setitem(sys.modules, 'estimator_train.__main__', types.ModuleType(''))
  assert train(command_line.parse(['--dataset=mine:describe', '--model=mine:build',
                                   '--train_epochs=1'])) == (folder, True)


def test_notebooks_do_not_resume_the_runs_of_others(main):
  settings = main()
  assert [train(settings) for _ in range(2)] == [('describe-build', False),
                                                 ('describe-build', True)]
  digest = default_folder.digest_flags(settings)
  settings = main()
  sys.modules['__main__'].__file__ = '<stdin>'
  assert 'before and of session of' in default_folder.choose_folder(settings).reason
  assert [train(settings) for _ in range(2)] == [('describe-build-2', False),
                                                 ('describe-build-2', True)]
  assert default_folder.digest_flags(settings) != digest, 'both may start at the same time'


def test_a_run_of_an_earlier_version_stays_usable_from_its_script(main):
  settings = main('mine.py')
  RunDir('old').make()
  RunDir('old').record_flags(settings)
  with open('old/flags.txt') as file:
    flags = file.read()
  with open('old/flags.txt', 'w') as file:
    file.write(flags.replace('=mine:', '=__main__:'))
  assert RunDir('old').flag_differences(settings, ['model', 'dataset']) == []
  recorded = command_line.settings_from_keywords('predict', {'model_dir': 'old', 'input': 'x'})
  assert recorded.model.model == 'mine:build' and call(recorded) == 7
  main('estimator_train/__main__.py', 'estimator_train.__main__')
  del sys.modules['__main__'].describe
  recorded = command_line.parse(['--mode=predict', '--model_dir=old', '--input=x'])
  with pytest.raises(UserError, match='^--dataset names a function of a notebook, or of a script '
                     'that cannot be imported: --dataset=__main__:describe: put the functions into '
                     'a file, such as mine.py, and give --dataset=mine:describe, and likewise'):
    call(recorded)


def test_a_module_in_another_folder_and_a_hidden_one(main, monkeypatch, tmp_path):
  main('other.py')
  monkeypatch.syspath_prepend(str(tmp_path))
  (tmp_path / 'folder').mkdir()
  with pytest.raises(UserError, match="cannot be found: .*No module named 'away'.*; run in the "
                     'folder that contains away/mine.py, or add that folder to PYTHONPATH$'):
    call(Settings(dataset='away.mine:describe'))
  with pytest.raises(UserError, match='found: --dataset=folder:describe .folder is a folder '
                     'without __init__.py.: .*; run in the folder that contains folder.py'):
    call(Settings(dataset='folder:describe'))
  with pytest.raises(UserError, match='not exist: --dataset=json:describe in .*/json/__init__'):
    call(Settings(dataset='json:describe'))


def test_a_module_that_trains_when_it_is_imported(main, monkeypatch, tmp_path):
  main('other.py')
  monkeypatch.syspath_prepend(str(tmp_path))
  (tmp_path / 'unguarded.py').write_text('import estimator_train\nestimator_train.train()\n')
  for _ in range(2):
    with pytest.raises(UserError, match='^a module .* must not train when it is imported: '
                       "--dataset=unguarded:describe: call train below the line if __name__ == '_"):
      call(Settings(dataset='unguarded:describe'))
  user_code.check_is_not_importing()
