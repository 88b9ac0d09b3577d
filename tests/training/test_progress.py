"""Progress bars, log lines and scalars of the progress, under a clock that is given to them."""

import contextlib
import fcntl
import json
import math
import os
import re
import struct
import sys
import termios
import time
from types import SimpleNamespace

import pytest
import tensorflow.compat.v1 as tf
import tqdm
import training_runs
from hook_runs import Steps, make_run, readings

from estimator_train.model import schedules
from estimator_train.training import progress


@pytest.fixture
def steps():
  return Steps()


@pytest.fixture
def make_progress(steps, tmp_path):
  def make(end_step, log_every_steps, num_examples=None, schedule=None, **more):
    return progress.ShowProgress(
        make_run(end_step, str(tmp_path), num_examples, log_every_steps),
        SimpleNamespace(schedule=schedule), steps.last, **more)

  return make


@pytest.fixture
def lines(caplog):
  caplog.set_level('INFO', 'estimator_train')
  return lambda: [text for text in caplog.messages if text.startswith(('step ', 'epoch '))]


def metrics_of(folder, kind, *names):
  """These values of each line of metrics.jsonl, which has no other ones."""
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  for line in lines:
    assert set(line) == {'kind', 'time', *names} and line['kind'] == kind
    assert 0 <= time.time() - line['time'] < 600
  return [tuple(line[name] for name in names) for line in lines]


def test_log_lines_and_scalars(steps, make_progress, lines, tmp_path):
  # The clock is read when the session is created, and after steps 2, 4 and 5.
  steps.run([1., 2., 3., 4., 5.], make_progress(
      5, 2, num_examples=20, clock=readings(10., 14., 15., 17.),
      schedule=schedules.Schedule(.5, 0, [4], [.25])))
  assert lines() == [
      'step 2/5 (epoch 1/3): loss 1.50, accuracy 0.150, 5 examples/sec, 6 s left',
      'step 4/5 (epoch 2/3): loss 3.50, accuracy 0.350, 20 examples/sec, 0 s left',
      'step 5/5 (epoch 3/3): loss 5.00, accuracy 0.500, 5 examples/sec, 0 s left']
  tf.summary.FileWriterCache.clear()
  names = 'examples_per_sec', 'step_secs', 'learning_rate'
  assert training_runs.all_scalars(tmp_path) == {  # WriteSummaries writes the learning rate.
      (step, name): value for step, *values in ((2, 5., 2.), (4, 20., .5), (5, 5., 2.))
      for name, value in zip(names, values)}
  assert metrics_of(tmp_path, 'train', 'global_step', 'loss', 'accuracy', *names) == [
      pytest.approx(values) for values in (
          (2, 1.5, .15, 5., 2., .5), (4, 3.5, .35, 20., .5, .5), (5, 5., .5, 5., 2., .25))]


def test_the_means_belong_to_the_epoch_of_their_line(steps, make_progress, lines, tmp_path):
  """Two steps are an epoch; metrics.jsonl has the means since the previous logged step."""
  steps.run([9., 8., 3., 2., 1.], make_progress(6, 3, num_examples=20, clock=readings(0., 3.)))
  assert lines() == ['step 3/6 (epoch 2/3): loss 3.00, accuracy 0.300, 10 examples/sec, 3 s left']
  assert json.loads((tmp_path / 'metrics.jsonl').read_text())['loss'] == pytest.approx(20 / 3)


def test_a_model_without_accuracy_on_data_without_end(steps, make_progress, lines):
  steps.run([1., 2.], make_progress(2, 2, clock=readings(10., 14.)), has_accuracy=False)
  assert lines() == ['step 2/2: loss 1.50, 5 examples/sec, 0 s left']


def test_a_bar_fits_the_terminal_and_is_redrawn_once_a_second(
    steps, make_progress, monkeypatch, lines):
  screen, terminal = os.openpty()
  fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 9, 101, 0, 0))
  monkeypatch.setattr(tqdm.std, 'time', lambda: steps.last.global_step / 8)
  with open(terminal, 'w') as stderr:
    monkeypatch.setattr(sys, 'stderr', stderr)
    hook = make_progress(40, 1000, num_examples=20)
    steps.run([number / 10 for number in range(1, 35)], hook)
    hook.close()
  text = ''
  with open(screen, 'rb', buffering=0) as shown_bytes, contextlib.suppress(OSError):
    while True:  # Until the error after the last byte: the other side is closed.
      text += shown_bytes.read(1000).decode('utf-8', 'ignore')
  bars = [part for part in text.split('\r') if '/40' in part]
  assert [int(bar.split('/')[0].split()[-1]) for bar in bars] == [1, 9, 17, 25, 33]
  assert bars[-1].startswith(
      'step 33/40, 1 s left, loss 3.30, accuracy 0.330, epoch 17/20, 80 examples/sec |█')
  assert all(len(bar) <= 100 for bar in bars)
  assert lines() == []


@pytest.mark.parametrize('fails', [False, True])
def test_a_bar_in_a_notebook_is_full_unless_training_fails(
    steps, make_progress, jupyter_kernel, capsys, fails):
  """A widget that is not full is red; an evaluation may stop a run that is well early."""
  hook = make_progress(9, 1000, num_examples=20, clock=readings(*range(10)))

  def fail(step):
    assert not (fails and step == 4)

  with contextlib.suppress(AssertionError):
    steps.run([1., 2., 3., 4.], hook, before_step=fail)
  hook.close()
  last = capsys.readouterr().err.split('\r')[-1]
  # The loss is the mean over the steps of the second epoch.
  assert re.match(r'step {}/\d, .* left, loss {}, accuracy .*, epoch 2/5'.format(
      *(3, '3.00') if fails else (4, '3.50')), last)
  assert last.endswith('█|\n') != fails


def test_epochs_of_a_resumed_run(steps, lines, tmp_path):
  # Of 25 examples, by 10 a step: epochs end in steps 3, 5 and 8. Loss scaling skips step 7.
  steps.run([5., 6., math.nan, 8.], progress.LogEpochs(
      make_run(8, str(tmp_path), num_examples=25),
      SimpleNamespace(schedule=schedules.Schedule(.5, 0, [6], [.25])), steps.last,
      readings(0., 185., 7570.)), start=4)
  assert lines() == [
      'epoch 2/3 (from step 5): loss 5.00, accuracy 0.500, 3:05, 0.0541 examples/sec',
      'epoch 3/3: loss 7.00, accuracy 0.700, 2:03:05, 0.00406 examples/sec, learning rate 0.250']
  assert metrics_of(tmp_path, 'epoch', 'epoch', 'first_step', 'global_step', 'loss', 'accuracy',
                    'secs', 'examples_per_sec') == [pytest.approx(values) for values in (
                        (2, 5, 5, 5., .5, 185., 10 / 185), (3, 6, 8, 7., .7, 7385., 30 / 7385))]
