"""`--mode=lr_finder`: the losses it records, the rates it suggests, and what it leaves."""

import json
import math
from unittest import mock

import numpy as np
import pytest
import training_runs
from conftest import contents_of
from numpy.testing import assert_allclose

from estimator_train.modes import lr_finder

FLAGS = ['--mode=lr_finder', '--model=own_models:two_layers', '--batch_size=32',
         '--optimizer=sgd']


@pytest.mark.page
def test_the_suggested_rate_trains(run_well, copied_run, tmp_path, monkeypatch):
  """The run of another model that is in model_dir is left alone, and nothing is left elsewhere."""
  elsewhere = tmp_path / 'elsewhere'
  elsewhere.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(elsewhere))
  before = contents_of(copied_run)
  done = run_well('--model_dir', copied_run, *FLAGS)
  result = done.result
  after = contents_of(copied_run)
  assert json.loads(after.pop('lr_finder.json').decode()) == result
  assert after.pop('report/lr-finder.png')
  assert 'lr-finder' in after.pop('report/index.html').decode()
  assert {name: after.pop(name) for name in before} == before
  assert all(name.startswith('report/') for name in after)  # The page shows that run, too.
  assert list(elsewhere.iterdir()) == []
  rates = [point['learning_rate'] for point in result['points']]
  assert_allclose(np.diff(np.log(rates)), math.log(1e8) / 100)
  assert rates[0] == pytest.approx(1e-7) and result['optimizer'] == 'sgd'
  assert 1e-3 < result['learning_rate'] < result['min_loss_rate'] <= 10.
  assert '{:#.3g}, at which the loss decreases fastest'.format(
      result['learning_rate']) in done.err
  high, low = (
      run_well('--model=own_models:two_layers', '--batch_size=32', '--optimizer=sgd',
               '--learning_rate={}'.format(rate), '--train_steps=30',
               '--model_dir={}/{}'.format(elsewhere, rate)).result['accuracy']
      for rate in (result['learning_rate'], result['learning_rate'] / 100))
  assert high > low + .2


def test_replicas_and_steps(run_well, tmp_path):
  """Two replicas measure what one does; the first loss is that of the initial weights."""
  flags = [*FLAGS, '--train_steps=20', '--lr_warmup_epochs=3']
  alone = run_well(*flags, '--distribution_strategy=off', '--model_dir', tmp_path / 'one').result
  both = run_well(*flags, '--num_cpu_replicas=2', '--model_dir', tmp_path / 'two').result
  assert (alone['num_replicas'], both['num_replicas']) == (1, 2)
  for key in ('loss', 'smoothed_loss'):
    assert_allclose(*([point[key] for point in result['points']][:12] for result in (alone, both)),
                    rtol=1e-5)
  training_runs.train(tmp_path / 'run', batch_size=32, optimizer='sgd', train_steps=1)
  assert training_runs.scalars(tmp_path / 'run', 'loss')[1] == pytest.approx(
      alone['points'][0]['loss'], rel=1e-6)
  assert sorted(path.name for path in (tmp_path / 'two').iterdir()) == ['lr_finder.json']


def record(losses):
  """Returns the hook after steps with these losses, or as many of them as it lets run."""
  monitor, context = mock.Mock(), mock.Mock()
  hook = lr_finder.LossRecorder(monitor, len(losses))
  for monitor.loss in losses:
    hook.after_run(context, None)
    if context.request_stop.called:
      break
  assert hook.has_diverged == context.request_stop.called
  return hook


def test_losses_that_diverge():
  steady = [2.] * 50
  # The first two that are larger raise the average to 4, then to 13.
  for others, recorded in (([22., 100.], [22., 100.]), ([math.nan], []), ([math.inf], [])):
    hook = record(steady + others + steady)
    assert hook.has_diverged and hook.losses == steady + recorded
    assert_allclose(hook.smoothed_losses[:50], 2.)  # The first averages have no bias.
  assert not record([-2.] * 50 + [-1.] * 50).has_diverged
  assert record([math.nan]).losses == []


def choose(losses):
  """Returns the chosen rates as the numbers of their steps."""
  points = [{'learning_rate': step, 'loss': loss, 'smoothed_loss': smoothed}
            for step, (loss, smoothed) in enumerate(zip(losses, record(losses).smoothed_losses))]
  return tuple(lr_finder.choose_rates(points, len(losses)).values())


def test_chosen_rates():
  """The descent is steepest at step 50; noise, and steps after the smallest loss, do not count."""
  steps, noise = np.arange(100), np.random.RandomState(1).normal(0, .02, 100)
  descent = 1 + 1 / (1 + np.exp((steps - 50) / 4))
  steepest, lowest = choose(descent + noise + np.maximum(steps - 80, 0) ** 2 / 50)
  assert abs(steepest - 50) <= 2 and 75 <= lowest <= 85
  beyond = np.where(steps == 85, 4., descent)  # A peak of which one side falls steeply.
  assert choose(beyond)[0] in range(48, 53)
  assert choose(np.linspace(1, 2, 100)) == (None, 0)
  assert choose([1.]) == (None, 0)
  assert lr_finder.choose_rates([], 100) == {'learning_rate': None, 'min_loss_rate': None}
