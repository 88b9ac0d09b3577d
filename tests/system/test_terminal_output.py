"""Bars and the log share the terminal; numbers have three digits; the last lines of a mode."""

import logging
import os
import threading
import time

import pytest
import terminal
from conftest import load_script

from estimator_train.settings import proposals
from estimator_train.system import formatting, logs, progress, summary

LOG = logging.getLogger('estimator_train')
COLUMNS = 60


@pytest.fixture
def on_terminal(monkeypatch):
  """Returns a terminal to which the log is written."""
  previous_handlers = LOG.handlers
  monkeypatch.setattr(progress, '_REDRAW_SECS', .01)

  class LoggingTerminal(terminal.Terminal):
    def __enter__(self):
      super().__enter__()
      logs.set_up_logging(1)
      return self

  with monkeypatch.context() as context:
    yield LoggingTerminal(context, COLUMNS)
  LOG.handlers = previous_handlers


@pytest.mark.parametrize('ends_first', ['phase', 'bar'])
def test_lines_appear_above_the_bars_of_all_threads(on_terminal, ends_first):
  """A cache is filled by a thread while the main thread builds the graph."""
  is_logged, may_end = threading.Event(), threading.Event()

  def fill():
    with progress.make_bar('caching', 1000, 'images') as bar:
      for _ in range(10):
        bar.update(10)
        LOG.info('%s', 'from the thread')
      is_logged.set()
      may_end.wait(10)

  with on_terminal:
    thread = threading.Thread(target=fill)
    thread.start()
    is_logged.wait(10)
    with progress.show_phase('building the graph'):
      time.sleep(.05)
      LOG.info('a line')
      if ends_first == 'bar':
        may_end.set()
        thread.join()
        LOG.info('another line')
    LOG.info('after the phase')
    may_end.set()
    thread.join()
    LOG.info('the end')
  assert on_terminal.lines == [
      *['from the thread'] * 10, 'a line', *['another line'] * (ends_first == 'bar'),
      'building the graph', 'after the phase', 'the end']
  assert on_terminal.written.count('building the graph, 0 s') > 2  # It moves.


def test_a_phase_states_its_duration_and_leaves_nothing_after_an_error(on_terminal, monkeypatch):
  with on_terminal, monkeypatch.context() as context:
    seconds = iter([10., 82.])
    context.setattr(progress.time, 'monotonic', lambda: next(seconds, 82.))
    with progress.show_phase('building the model'):
      pass
    with pytest.raises(ValueError), progress.show_phase('converting the model'):
      raise ValueError
  assert on_terminal.lines == ['building the model, 1:12']
  assert 'converting the model, 0 s' in on_terminal.written


def test_without_a_terminal_a_phase_is_one_line_at_its_start(caplog):
  caplog.set_level('INFO', 'estimator_train')
  with progress.show_phase('building the model'):
    assert caplog.messages == ['building the model']
  assert caplog.messages == ['building the model']


@pytest.mark.parametrize('columns', [20, 40, 60, 120])
def test_a_narrow_bar_has_fewer_parts_and_no_cut_number(monkeypatch, columns):
  parts = ['step 12345/67890', '1:23:45 left', 'loss 0.123', 'accuracy 0.987',
           '12,345 examples/sec']
  with monkeypatch.context() as context, terminal.Terminal(context, columns) as screen:
    progress.ProgressBar(lambda bar: parts, total=10).close()
  shown = screen.written.split('\r')[2].partition(' |')[0]
  assert shown == ', '.join(parts[:len(shown.split(', '))])
  assert len(shown.split(', ')) == {20: 1, 40: 2, 60: 3, 120: 5}[columns]


@pytest.mark.parametrize('columns, rows', [(60, 0), (0, 24), (0, 0)])
def test_a_terminal_that_reports_no_size_shows_bars(monkeypatch, columns, rows):
  with monkeypatch.context() as context, terminal.Terminal(context, columns, rows) as screen:
    progress.ProgressBar(lambda bar: ['step 3/10'], total=10).close()
  assert 'step 3/10 |' in screen.written
  assert max(map(len, screen.written.split('\r'))) == (columns or 80) - 1


def test_the_time_that_is_left():
  with pytest.MonkeyPatch.context() as context, terminal.Terminal(context, 80):
    bar = progress.ProgressBar(lambda bar: ['x'], total=100, initial=10)
    clock = bar._bar.start_t
    for secs, count, expected in (
        (3, 0, '3 s'), (5, 10, '40 s left'), (9, 0, '1:12 left'), (12, 0, '40 s left')):
      bar._bar._time = lambda secs=secs: clock + secs
      bar.update(count)
      assert bar.format_time() == expected, secs
    bar.close()


def test_long_lines_are_broken_between_words_but_commands_are_not(on_terminal):
  words = 'accuracy 0.784, average loss 0.581, calibration error 0.0281, macro f1 0.782'
  with on_terminal:
    LOG.warning(words)
    summary.log_summary('done', [('evaluation', words), ('report', '/a' * 50)],
                        'python -m ' + 'argument ' * 10)
  written = on_terminal.written.replace('\r\n', '\n').split('\n')
  assert written[:2] == ['warning: accuracy 0.784, average loss 0.581, calibration',
                         '  error 0.0281, macro f1 0.782']
  assert written[2:7] == ['done', '  evaluation  accuracy 0.784, average loss 0.581,',
                          '              calibration error 0.0281, macro f1 0.782',
                          '  report      ' + '/a' * 50,
                          '  next        python -m ' + 'argument ' * 10]


@pytest.mark.parametrize('environment, program, expected', [
    ({}, '/venv/bin/estimator-train', 'estimator-train'),
    ({'PATH': '/venv/bin'}, '/x/estimator_train/__main__.py', 'python -m estimator_train'),
    ({'PATH': '/other'}, '/x/estimator_train/__main__.py', '/venv/bin/python -m estimator_train'),
    ({'PATH': '/venv/bin', 'ESTIMATOR_TRAIN_TF': 'onednn'}, 'script.py',
     'python -m estimator_train'),
    ({'ESTIMATOR_TRAIN_COMMAND': './a run.sh'}, 'x', "'./a run.sh'"),
    ({'ESTIMATOR_TRAIN_COMMAND': './run.sh', 'ESTIMATOR_TRAIN_TF': 'onednn'}, 'x',
     'ESTIMATOR_TRAIN_TF=onednn ./run.sh')])
def test_the_next_command_runs_the_program_in_the_same_way(
    monkeypatch, environment, program, expected):
  for name in ('ESTIMATOR_TRAIN_COMMAND', 'ESTIMATOR_TRAIN_TF'):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr('sys.argv', [program])
  monkeypatch.setattr('sys.executable', '/venv/bin/python')
  monkeypatch.setattr('shutil.which', lambda name: '{}/{}'.format(os.environ['PATH'], name))
  assert proposals.make_command('--model_dir=a b') == expected + " '--model_dir=a b'"


@pytest.mark.parametrize('function, value, expected', [
    (formatting.format_number, .5734, '0.573'), (formatting.format_number, 12345.6, '12,346'),
    (formatting.format_number, 2.0, '2'), (formatting.format_number, None, '–'),
    (formatting.format_metric, float('nan'), 'nan'), (formatting.format_metric, 1e-6, '1.00e-06'),
    (formatting.format_secs, 225.9533, '226 s'), (formatting.format_secs, 6125, '102 min'),
    (formatting.format_secs, 40000, '11.1 h'), (formatting.format_secs, .03674, '36.7 ms'),
    (formatting.format_secs, 2e-5, '20.0 µs'), (formatting.format_clock, 59, '59 s'),
    (formatting.format_clock, 59.7, '1:00'), (formatting.format_clock, 3723, '1:02:03'),
    (formatting.format_bytes, 373288, '373 kB'), (formatting.format_bytes, 2e9, '2.00 GB'),
    (formatting.format_bytes, 17, '17 bytes'), (formatting.format_percent, 1, '100 %'),
    (formatting.format_percent, .8439, '84.4 %'), (formatting.format_percent, .0131, '1.31 %'),
    (formatting.format_percent, 0, '0 %'), (formatting.format_ratio, 1., '1.00×')])
def test_numbers_have_three_digits_and_a_unit_that_fits(function, value, expected):
  assert function(value) == expected


def test_counts():
  assert [formatting.format_count(count, 'image') for count in (1, 2000)] == [
      '1 image', '2,000 images']


def test_the_setup_shows_that_it_is_running(monkeypatch):
  """The installation of packages prints nothing for a minute."""
  make_venv = load_script('../requirements/make_venv')
  monkeypatch.setattr(make_venv, 'REDRAW_SECS', .01)
  with monkeypatch.context() as context, terminal.Terminal(context, COLUMNS) as screen:
    make_venv.say('Installing')
    with make_venv.show_seconds(time.monotonic() - 61):
      time.sleep(.1)
      make_venv.say('unpacking')
    make_venv.say('Done')
  assert screen.lines == ['Installing', 'unpacking', 'Done']
  assert screen.written.count('   61 s') > 2
