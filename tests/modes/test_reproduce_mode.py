"""`--mode=reproduce`: what it runs, what it leaves out, and what the ledger says of it."""

import json
import os

import pytest
from conftest import ROOT
from mode_runs import Runs

from estimator_train.errors import UserError
from estimator_train.modes import reproduce
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, workloads
from estimator_train.settings.workloads import WORKLOADS


@pytest.fixture
def run(tmp_path):
  def reproduce_workload(workload, runner, gpus=0, **given):
    settings = Settings(mode='reproduce', workload=workload, model_dir=str(tmp_path), **given)
    return reproduce.run(settings, RunDir(str(tmp_path)), runner, lambda: gpus)

  return reproduce_workload


@pytest.mark.page
def test_ledger_of_fashion_mnist(run, tmp_path, capsys):
  runner = Runs()
  result = run('fashion_mnist', runner, data_dir='some where')
  assert {(ran.num_gpus, ran.data_dir) for ran in runner.settings} == {(-1, 'some where')}
  assert [(ran.train_steps, ran.train_epochs, ran.batch_size) for ran in runner.settings] == [
      (1000, None, 256), (2000, None, 256), (None, 5, 1024)]
  first, second, third = (ran.model_dir for ran in runner.settings)
  assert first == second != third and os.path.dirname(first) == str(tmp_path)

  assert [(row['measured'], row['ratio']) for row in result['rows']] == [
      ('0.8800', '0.997'), ('0.4', '0.0017'), ('0.8900', '0.993'), ('0.500', '1.77'),
      ('0.9000', '1.07'), ('100', '0.00165'), ('3000.3 s', None)]
  rows = {row['what']: row for row in result['rows']}
  assert rows['steps/s'] == {
      'what': 'steps/s', 'published': '230', 'published_conditions': '2 GPUs, 128 per replica',
      'measured': '0.4', 'conditions': '1 replica on /cpu:0, 256 examples per replica, step 77',
      'ratio': '0.0017', 'why': 'published on 2 GPUs, measured on CPU cores'}
  assert 'the first release of the published script' in rows['total time of 293 steps']['why']
  assert json.loads((tmp_path / 'ledger.json').read_text()) == result
  assert capsys.readouterr().out == (tmp_path / 'ledger.md').read_text()
  assert 'steps/s' in (tmp_path / 'report' / 'index.html').read_text(encoding='utf-8')
  # A measurement within the range that was published has the ratio 1.
  figure = WORKLOADS['fashion_mnist'].parts[0].figures[0]
  assert [reproduce._format_ratio(figure, measured)
          for measured in (.883, .886, .89, .7, None)] == ['1', '1', '1', '0.793', None]


@pytest.mark.parametrize('gpus, given, devices', [
    (0, {}, [(-1, 0), (-1, 0), (-1, 2)]), (3, {}, [(1, 0), (1, 0), (2, 0)]),
    (2, {'num_cpu_replicas': 4}, [(-1, 4)] * 3), (0, {'num_gpus': 0}, [(0, 0)] * 3)],
                         ids=['CPU', 'more GPUs than published', 'given replicas', 'given GPUs'])
def test_three_routes(run, gpus, given, devices):
  runner = Runs()
  row = run('mnist_tf_data', runner, gpus, **given)['rows'][-1]
  assert [(ran.num_gpus, ran.num_cpu_replicas) for ran in runner.settings] == devices
  assert [(ran.cache, ran.batch_size) for ran in runner.settings] == [
      ('none', 256), ('memory', 256), ('none', 512)]
  assert (row['measured'], row['conditions']) == ('0.0200', 'the runs above')


@pytest.mark.parametrize('gpus, num_gpus, measured, why', [
    (0, [], ['not measured here'] * 5, 'requires 8 GPU(s), this machine has none'),
    (2, [1], ['600.0', '0.8800'] + ['not measured here'] * 3,
     'requires 8 GPU(s), this machine has 2'),
    (8, [1, 8], ['600.0', '0.8800', '75.0', '0.8900', '8.0'], 'different GPUs')])
def test_what_would_take_days_is_not_run(run, gpus, num_gpus, measured, why):
  runner = Runs()
  rows = run('mnist_8gpu', runner, gpus)['rows']
  assert [ran.num_gpus for ran in runner.settings] == num_gpus
  assert [row['measured'] for row in rows] == measured
  assert rows[2]['why'] == why
  if gpus == 8:
    assert rows[2]['conditions'].startswith('8 replicas on /gpu:0, /gpu:1, ')
    assert rows[-1]['ratio'] == '{:.3g}'.format(8 / 6.7)


def test_parts_that_fail_are_run_again(run, tmp_path):
  with pytest.raises(UserError, match='no part of the workload succeeded: a fault: 256: '
                     ) as error:
    run('fashion_mnist', Runs(fails=lambda settings: True))
  assert error.value.result['rows'][0]['measured'] == 'failed'
  assert (tmp_path / 'ledger.json').exists()
  first = Runs(fails=lambda settings: settings.duration.train_steps == 1000)
  second, third = Runs(), Runs()
  row = run('fashion_mnist', first)['rows'][0]
  assert (row['measured'], row['why'], row['ratio']) == (
      'failed', 'a fault: 256: fix it', None)
  result = run('fashion_mnist', second)
  assert [ran.train_steps for ran in second.settings] == [1000]
  assert run('fashion_mnist', third) == result and not third.settings
  with pytest.raises(UserError, match='--model_dir was created with other flags: --workload=fash'):
    run('oct2017', Runs())


def test_a_real_run(run_well, tmp_path, monkeypatch):
  """The child's own files, from a flagfile that takes seconds."""
  (tmp_path / 'fashion_mnist.flags').write_text(
      '--dataset=fashion_mnist_sample\n--model=own_models:two_layers\n--train_steps=12\n')
  (part, *_) = WORKLOADS['fashion_mnist'].parts
  monkeypatch.setitem(WORKLOADS, 'fashion_mnist',
                      WORKLOADS['fashion_mnist']._replace(parts=[part]))
  monkeypatch.setattr(workloads, 'FLAGFILES_DIR', str(tmp_path))
  monkeypatch.setenv('PYTHONPATH', str(ROOT / 'tests'))
  done = run_well('--mode=reproduce', '--workload=fashion_mnist',
                  '--model_dir={}'.format(tmp_path / 'out'))
  ran = json.loads((tmp_path / 'out' / '1000_steps.json').read_text())
  assert ran['throughput']['global_step'] == 12
  assert done.result['rows'][0]['measured'] == '{:.4f}'.format(ran['evaluation']['accuracy'])
