"""The program as a process: what it imports, prints and returns."""

import importlib.util
import re
import runpy
import subprocess
import sys

import pytest
import setuptools
from conftest import ROOT, run_process

import estimator_train
from estimator_train import __main__ as program

TWO_TASKS = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'


def run(*command, **environment):
  return run_process(sys.executable, *command, env=environment)


def test_a_later_python_without_tensorflow(monkeypatch, capsys):
  """setup.py, the program and an import say what to do, unless it has NVIDIA's build."""
  reason = ('estimator_train requires TensorFlow 1.15, which exists for Python 3.6 and 3.7: '
            'this is Python 3.8: use ./run_train.sh, which sets up Python 3.7, or ')
  called = []
  monkeypatch.setattr(setuptools, 'setup', lambda **given: called.append(given))
  monkeypatch.setattr(sys, 'version_info', (3, 8))
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(subprocess, 'call', lambda command: 1)
  with pytest.raises(SystemExit, match='^error: ' + re.escape(reason)):
    runpy.run_path(str(ROOT / 'setup.py'))
  package = (ROOT / 'estimator_train' / '__init__.py').read_text(encoding='utf-8')
  for argument in ('-m', '/usr/bin/estimator-train'):
    monkeypatch.setattr(sys, 'argv', [argument])
    with pytest.raises(SystemExit, match='^2$'):
      exec(package, {})
    out, err = capsys.readouterr()
    assert out == '' and err.startswith('error: ' + reason) and err.count('\n') == 1
  monkeypatch.setattr(sys, 'argv', ['mine.py'])
  with pytest.raises(ImportError, match='^' + re.escape(reason)):
    exec(package, {})
  assert not called
  monkeypatch.setattr(subprocess, 'call', lambda command: 0)
  runpy.run_path(str(ROOT / 'setup.py'))
  extras, required = called[0]['extras_require'], ' '.join(called[0]['install_requires'])
  assert extras['report'] == extras['images'] == []
  assert all(name in required for name in ('Jinja2', 'Pillow'))
  assert 'matplotlib' not in required and 'matplotlib' in ' '.join(extras['notebooks'])


def test_help_and_flag_errors_import_no_tensorflow():
  code = ('import sys; from estimator_train.__main__ import main; code = main(sys.argv[1:]); '
          'assert not [name for name in sys.modules if name.startswith("tensorflow")]; '
          'sys.exit(code)')
  done = run('-c', code, '--help')
  assert done.returncode == 0 and '--batch_size: ' in done.stdout and done.stderr == ''
  for arguments, config, message in (
      (['--batch_size=0'], '', ''), (['--mode=evaluate'], '', ''),
      (['--model_dir=x', '--train_steps=1'], TWO_TASKS, 'TF_CONFIG: it names several tasks, but '
       '--distribution_strategy=mirrored runs in one: ')):
    done = run('-c', code, *arguments, **({'TF_CONFIG': config} if config else {}))
    assert done.returncode == 2 and done.stdout == '', done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith('error: ' + message) and (config or done.stderr.count('\n') == 1)


def test_the_command_finds_functions_in_this_folder(tmp_path):
  (tmp_path / 'mine.py').write_text('')
  code = ('import os, sys; sys.path.append({!r}); os.chdir({!r}); '
          'from estimator_train.__main__ import run_and_exit; run_and_exit()').format(
              str(ROOT), str(tmp_path))
  done = run('-I', '-c', code, '--dataset=mine:missing', '--train_steps=1', '--model_dir=made')
  assert done.returncode == 2 and 'names a function that does not exist' in done.stderr


def test_results_and_logs_keep_apart(tmp_path):
  done = run('-m', 'estimator_train', '--model_dir', tmp_path / 'odd $name', '--mode=train',
             '--train_steps=2', '--dataset=synthetic', '--batch_size=8', '--log_every_steps=1')
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) == 1 and done.stdout.startswith('{"mode": "train"')
  assert re.match(
      r'importing TensorFlow\n(.*\n)*fashion_cnn on synthetic.*\n(.*\n)*step 1/2: loss.*\n(.*\n)*'
      r'  checkpoint .*odd \$name/model\.ckpt-2\n', done.stderr)
  # TensorFlow logs nothing in between.
  assert len(done.stderr.splitlines()) == 16, done.stderr


def test_what_is_printed_on_a_terminal(capsys, monkeypatch):
  monkeypatch.setattr(program.modes, 'run', lambda settings: {'mode': 'doctor'})
  monkeypatch.setenv('COLUMNS', '60')
  for is_terminal in (True, False):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda value=is_terminal: value)
    outs = []
    for argument in ('--verbosity=0', '--json', '--help', '--version', None):
      assert program.main(['--mode=doctor', argument] if argument else []) == 0
      outs.append(capsys.readouterr().out)
    assert outs[:2] == ['' if is_terminal else outs[1], '{"mode": "doctor"}\n']
    assert (max(map(len, outs[2].splitlines())) <= 60) == is_terminal
    assert outs[3] == estimator_train.__version__ + '\n'
    assert '--flagfile=quickstart' in outs[4] and len(outs[4].splitlines()) < 15
