"""The functions take flags as keywords, complete them as a command line does, and show the log."""

import inspect
import logging
import sys
from unittest import mock

import numpy as np
import own_models
import pytest
from conftest import ROOT, process_state, run_process

import estimator_train
from estimator_train import Settings, UserError
from estimator_train.library import results
from estimator_train.library.process_state import restore_process_state
from estimator_train.settings.flag_type import all_flags
from estimator_train.system import logs

QUICK = {'dataset': 'synthetic', 'image_size': (8, 8), 'batch_size': 4, 'report_page': False,
         'model': own_models.two_layers}
FUNCTIONS = ('train', 'evaluate', 'predict', 'export', 'lr_find', 'report')
LOG = logging.getLogger('estimator_train')


@pytest.fixture(autouse=True)
def unset_level():
  """Unsets the level of the log, which earlier tests may have set."""
  level = LOG.level
  LOG.setLevel(logging.NOTSET)
  yield
  LOG.setLevel(level)


def without_handlers():
  """Removes the handlers of the root logger, which pytest adds before each test."""
  return mock.patch.object(logging.root, 'handlers', [])


def test_keywords(tmp_path, capsys):
  run, before = tmp_path / 'run', process_state()
  with without_handlers():  # As in a script that configures no logging.
    trained = estimator_train.train(model_dir=run, train_steps=2, **QUICK)
    assert logging.root.handlers == LOG.handlers == []
  out, err = capsys.readouterr()
  assert out == '' and '\nfinished at step 2\n' in err
  assert "\n  next        predict(model_dir='{}', input=IMAGES)\n".format(run) in err
  assert type(trained) is results.TrainingResult
  assert (trained.mode, trained.global_step) == ('train_and_evaluate', 2)
  # As on the command line, the other flags are those of the run.
  evaluated = estimator_train.evaluate(model_dir=run)
  assert evaluated.average_loss == trained.average_loss and evaluated.mode == 'evaluate'
  assert estimator_train.train(model_dir=run, train_steps=3).global_step == 3
  flags = (run / 'flags.txt').read_text()
  assert '\n--batch_size=4\n' in flags and '\n--step_timeout_secs=600' in flags
  exported = estimator_train.export(model_dir=run, export_dir=tmp_path, export_format='h5')
  assert exported.path.startswith(str(tmp_path)) and exported.global_step == 3
  # Keywords change settings.
  settings = Settings(model_dir=run, train_steps=3, mode='train', **QUICK)
  found = estimator_train.lr_find(settings, model_dir=tmp_path / 'lr', train_steps=4)
  assert found.mode == 'lr_finder' and 1 <= len(found.points) <= 4
  assert set(found.points[0]) == {'learning_rate', 'loss', 'smoothed_loss'}
  compared = estimator_train.report(runs=[run, run], model_dir=tmp_path / 'comparison')
  assert [each.folder for each in compared.runs] == [str(run)] * 2
  assert compared.page == str(tmp_path / 'comparison' / 'report' / 'index.html')
  assert process_state() == before
  for result in (trained, evaluated, exported, compared):
    # Editors complete what the results have.
    names = {name for kind in type(result).__mro__
             for name in vars(kind).get('__annotations__', ())}
    assert set(result) <= names | {'page'}, set(result) - names


def test_errors_of_keywords(tmp_path):
  (tmp_path / 'flags.txt').write_text('--batch_size=x\n')
  for call, kind, message in (
      (lambda: estimator_train.train({'seed': 1}), TypeError,
       'settings must be an object of the class Settings: got dict: give FLAG=VALUE as keywords, '),
      (lambda: estimator_train.predict([1]), TypeError,
       'got list: give FLAG=VALUE as keywords, such as input=IMAGES, or '),
      (lambda: estimator_train.train(np.zeros(3), [1]), TypeError,
       '^train takes Settings or keywords: got 2 positional arguments: give dataset=FUNCTION, '),
      (lambda: estimator_train.train(np.zeros(3)), TypeError, ': got ndarray: give dataset=FUN'),
      (lambda: estimator_train.predict(None, [1], 3), TypeError, 'got 3 positional arguments: '),
      (lambda: estimator_train.train(callbacks=[]), TypeError,
       '^unknown keyword: callbacks: give hooks=FUNCTION, '),
      (lambda: estimator_train.train(x=1), TypeError, '^unknown keyword: x: give dataset=FUNCT'),
      (lambda: estimator_train.train(train_stepps=1), TypeError, 'unknown keyword: train_stepps: '),
      (lambda: estimator_train.train(image_size=64.), ValueError,
       'image_size=64.0: give a tuple of 2 or 3 integers or None$'),
      (lambda: estimator_train.predict(on_nan='skip'), ValueError, '^on_nan=skip requires'),
      (lambda: estimator_train.train(model_dir=tmp_path / 'x'), UserError, '^training requir'),
      (estimator_train.report, UserError, '^mode=report requires runs|^model_dir is'),
      (lambda: estimator_train.evaluate(model_dir=tmp_path), UserError,
       '^batch_size must be an integer: batch_size=x .*flags.txt:1')):
    with pytest.raises(kind, match=message):
      call()


def test_signatures():
  """Tools for live code, such as the completion of Jupyter, see the flags."""
  assert list(inspect.signature(Settings).parameters) == list(all_flags())
  assert inspect.signature(Settings).parameters['batch_size'].default == 128
  assert list(inspect.signature(Settings().evolve).parameters) == list(all_flags())
  keywords = {name: set(inspect.signature(getattr(estimator_train, name)).parameters)
              for name in FUNCTIONS}
  assert 'batch_size' in set.intersection(*(keywords[name] for name in FUNCTIONS[:-1]))
  assert [name for name in FUNCTIONS if 'mode' in keywords[name]] == ['train']
  assert [name for name in FUNCTIONS if 'checkpoint' in keywords[name]] == [
      'evaluate', 'predict', 'export']
  assert keywords['report'] == {'settings', 'runs', 'model_dir', 'verbosity'}
  assert dir(estimator_train) == sorted([*estimator_train.__all__, '__version__'])
  assert {'batch_size', 'devices', 'evolve'} <= set(dir(Settings()))


def test_the_stub_is_generated():
  done = run_process(sys.executable, 'scripts/make_stub.py')
  stub = (ROOT / 'estimator_train' / '__init__.pyi').read_text(encoding='utf-8')
  assert stub == done.stdout, done.stderr + 'run scripts/make_stub.py'
  for name in estimator_train.__all__:
    assert any(line.startswith(('class {}:'.format(name), 'def {}('.format(name)))
               or line.strip(' ,').endswith('{0} as {0}'.format(name))
               for line in stub.splitlines()), name
  for name in ('py.typed', '__init__.pyi'):
    assert (ROOT / 'estimator_train' / name).exists()
    assert repr(name) in (ROOT / 'setup.py').read_text(encoding='utf-8')


def test_messages_name_keywords(caplog):
  with restore_process_state(uses_tensorflow=False):
    LOG.warning('give --batch_size=%d', 3)
    LOG.warning('a command: --x', extra={'is_verbatim': True})
  LOG.warning('give --batch_size')  # After the function of the library.
  assert [record.getMessage() for record in caplog.records] == [
      'give batch_size=3', 'a command: --x', 'give --batch_size']


def test_log_without_a_configuration(capsys):
  with without_handlers():
    with logs.show_log_by_default(0), logs.show_log_by_default(0):
      LOG.info('a\nb')
      LOG.warning('c')
      LOG.debug('d')
    LOG.info('e')
    assert capsys.readouterr() == ('', 'a\\nb\nwarning: c\n')
    assert (LOG.handlers, LOG.level) == ([], logging.NOTSET)
    with pytest.raises(KeyError), logs.show_log_by_default(1):
      LOG.debug('f')
      raise KeyError
    assert capsys.readouterr().err == 'f\n' and LOG.handlers == []


def test_log_in_a_notebook(capsys, jupyter_kernel):
  with without_handlers(), logs.show_log_by_default(0):
    LOG.info('a')
  assert capsys.readouterr() == ('a\n', '')  # Jupyter shows standard error in red.


@pytest.mark.parametrize('configured', ['', 'estimator_train'])
def test_log_of_the_user(capsys, configured):
  records = []
  handler = logging.Handler()
  handler.emit = records.append
  with without_handlers(), mock.patch.object(
      logging.getLogger(configured), 'handlers', [handler]), logs.show_log_by_default(0):
    LOG.info('a')  # The level is the user's, too.
    LOG.warning('b')
  assert [record.getMessage() for record in records] == ['b']
  assert capsys.readouterr() == ('', '')
