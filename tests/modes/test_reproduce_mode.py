"""`--mode=reproduce`: what it runs, what it leaves out, and what the ledger says of it."""

import json
import os

import pytest
from conftest import ROOT

from estimator_train.configs.workloads import WORKLOADS
from estimator_train.errors import UserError
from estimator_train.files import atomic, paths
from estimator_train.modes import reproduce
from estimator_train.process import child_process
from estimator_train.reports import ledger
from estimator_train.settings import Settings, command_line


class Runner:
  """Stands in for the processes that train: leaves the files of a run that went well."""

  def __init__(self, fails=()):
    self.ran = []
    self.fails = fails

  def __call__(self, arguments, log):
    settings = command_line.parse(arguments)
    number = len(self.ran)
    self.ran.append(settings)
    if number in self.fails:
      return child_process.ChildRun(2, None, 'no such file: data: get it')
    os.makedirs(settings.model_dir, exist_ok=True)
    replicas = settings.num_cpu_replicas or max(settings.num_gpus, 1)
    kind = 'gpu' if settings.num_gpus > 0 else 'cpu'
    atomic.write_json(os.path.join(settings.model_dir, 'throughput.json'), {
        'examples_per_sec': 512., 'num_replicas': replicas, 'global_step': 77,
        'global_batch_size': settings.batch_size,
        'per_replica_batch_size': settings.batch_size // replicas,
        'devices': ['/{}:{}'.format(kind, index) for index in range(replicas)]})
    atomic.write_json(os.path.join(settings.model_dir, 'evaluation.json'), {
        'accuracy': .88 + .01 * number, 'average_loss': .5})
    return child_process.ChildRun(0, {}, None)


@pytest.fixture
def run(tmp_path):
  def reproduce_workload(workload, runner, gpus=0, **given):
    settings = Settings(mode='reproduce', workload=workload, model_dir=str(tmp_path), **given)
    return reproduce.run(settings, runner, lambda: gpus)

  return reproduce_workload


def test_ledger_of_fashion_mnist(run, tmp_path, capsys):
  runner = Runner()
  result = run('fashion_mnist', runner, data_dir='some where')
  assert {(ran.num_gpus, ran.data_dir) for ran in runner.ran} == {(-1, 'some where')}
  assert [(ran.train_steps, ran.train_epochs, ran.batch_size) for ran in runner.ran] == [
      (1000, None, 256), (2000, None, 256), (None, 5, 1024)]
  first, second, third = (ran.model_dir for ran in runner.ran)
  assert first == second != third and os.path.dirname(first) == str(tmp_path)

  rows = {row['what']: row for row in result['rows']}
  steps = rows['steps/s']
  assert (steps['published'], steps['measured'], steps['ratio']) == ('230', '2.0', '0.0087')
  assert steps['conditions'] == '1 replica on /cpu:0, 256 examples per replica, step 77'
  assert steps['why'] == 'published on 2 GPUs, measured on CPU cores'
  assert rows['test accuracy at step 1,000']['ratio'] == '{:.3g}'.format(.88 / .883)
  assert rows['test accuracy at step 2,000']['measured'] == '0.8900'
  assert rows['test loss at step 2,000']['ratio'] == '{:.3g}'.format(.5 / .283)
  total = rows['total time of 293 steps']
  assert total['measured'] == '586.0 s' and total['ratio'] is None
  assert 'the first release of the published script' in total['why']

  assert json.loads((tmp_path / 'ledger.json').read_text()) == result
  assert capsys.readouterr().out == (tmp_path / 'ledger.md').read_text()
  # A measurement within the range that was published has the ratio 1.
  figure = WORKLOADS['fashion_mnist'].parts[0].figures[0]
  assert [ledger._ratio(figure, measured) for measured in (.883, .886, .89, .7, None)] == [
      '1', '1', '1', '0.793', None]


def test_devices(run):
  runner = Runner()
  rows = run('fashion_mnist', runner, gpus=3)['rows']
  assert [ran.num_gpus for ran in runner.ran] == [2, 2, 2]
  assert rows[1]['why'] == 'different GPUs'
  assert rows[1]['conditions'] == '2 replicas on /gpu:0, /gpu:1, 128 examples per replica, step 77'


@pytest.mark.parametrize('gpus, given, devices', [
    (0, 0, [(-1, 0), (-1, 0), (-1, 2)]), (2, 0, [(1, 0), (1, 0), (2, 0)]), (2, 4, [(-1, 4)] * 3)],
                         ids=['CPU', 'as many GPUs as published', 'what the user gives'])
def test_three_routes(run, gpus, given, devices):
  runner = Runner()
  row = run('mnist_tf_data', runner, gpus, num_cpu_replicas=given)['rows'][-1]
  assert [(ran.num_gpus, ran.num_cpu_replicas) for ran in runner.ran] == devices
  assert [(ran.cache, ran.batch_size) for ran in runner.ran] == [
      ('none', 256), ('memory', 256), ('none', 512)]
  assert (row['measured'], row['conditions']) == ('0.0200', 'the runs above')


def test_what_would_take_days_is_not_run(run):
  for gpus, num_gpus, measured, why in (
      (0, [], ['not measured here'] * 5, 'requires 1 GPU(s), this machine has none'),
      (2, [1], ['117.2', '0.8800'] + ['not measured here'] * 3,
       'requires 8 GPU(s), this machine has 2')):
    runner = Runner()
    rows = run('mnist_8gpu', runner, gpus)['rows']
    assert [ran.num_gpus for ran in runner.ran] == num_gpus
    assert [row['measured'] for row in rows] == measured
    assert rows[measured.index('not measured here')]['why'] == why
  row = run('mnist_8gpu', Runner(), 8)['rows'][-1]
  assert (row['what'], row['measured'], row['ratio']) == (
      'speed-up of 8 GPUs', '1.0', '{:.3g}'.format(1 / 6.7))


def test_parts_that_fail_are_run_again(run, tmp_path):
  with pytest.raises(UserError, match='no part of the workload succeeded: no such file: data: '
                     ) as error:
    run('fashion_mnist', Runner(fails=[0, 1, 2]))
  assert error.value.result['rows'][0]['measured'] == 'failed'
  assert (tmp_path / 'ledger.json').exists()
  first, second, third = Runner(fails=[0]), Runner(), Runner()
  row = run('fashion_mnist', first)['rows'][0]
  assert (row['measured'], row['why'], row['ratio']) == (
      'failed', 'no such file: data: get it', None)
  result = run('fashion_mnist', second)
  assert [ran.train_steps for ran in second.ran] == [1000]
  assert run('fashion_mnist', third) == result and not third.ran
  with pytest.raises(UserError, match='--model_dir was created with other flags: --workload=fash'):
    run('oct2017', Runner())


def test_a_real_run(run_well, tmp_path, monkeypatch):
  """The child's own files, from a flagfile that takes seconds."""
  (tmp_path / 'fashion_mnist.flags').write_text(
      '--dataset=fashion_mnist_sample\n--model=own_models:two_layers\n--train_steps=12\n')
  (part, *_) = WORKLOADS['fashion_mnist'].parts
  monkeypatch.setitem(WORKLOADS, 'fashion_mnist',
                      WORKLOADS['fashion_mnist']._replace(parts=[part]))
  monkeypatch.setattr(paths, 'CONFIGS_DIR', str(tmp_path))
  monkeypatch.setenv('PYTHONPATH', str(ROOT / 'tests'))
  done = run_well('--mode=reproduce', '--workload=fashion_mnist',
                  '--model_dir={}'.format(tmp_path / 'out'))
  ran = json.loads((tmp_path / 'out' / '1000_steps.json').read_text())
  assert ran['throughput']['global_step'] == 12
  assert done.result['rows'][0]['measured'] == '{:.4f}'.format(ran['evaluation']['accuracy'])
