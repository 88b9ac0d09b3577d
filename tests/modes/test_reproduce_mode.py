"""`--mode=reproduce`: what it runs, what it leaves out, and what the ledger says of it."""

import json
import os

import pytest
from conftest import ROOT

from estimator_train import flags
from estimator_train.configs.workloads import WORKLOADS
from estimator_train.errors import UserError
from estimator_train.files import paths
from estimator_train.modes import reproduce
from estimator_train.process import child_process
from estimator_train.reports import ledger
from estimator_train.settings import Settings


class Runner:
  """Stands in for the processes that train: leaves the files of a run that went well."""

  def __init__(self, fails=()):
    self.ran = []
    self.fails = fails

  def __call__(self, arguments, log):
    settings = flags.parse(arguments)
    number = len(self.ran)
    self.ran.append(settings)
    if number in self.fails:
      return child_process.ChildRun(2, None, 'no such file: data: get it')
    os.makedirs(settings.model_dir, exist_ok=True)
    replicas = settings.num_cpu_replicas or max(settings.num_gpus, 1)
    kind = 'gpu' if settings.num_gpus > 0 else 'cpu'
    for name, figures in (
        ('throughput', {'examples_per_sec': 512., 'global_batch_size': settings.batch_size,
                        'num_replicas': replicas, 'global_step': 77,
                        'per_replica_batch_size': settings.batch_size // replicas,
                        'devices': ['/{}:{}'.format(kind, index) for index in range(replicas)]}),
        ('evaluation', {'accuracy': .88 + .01 * number, 'average_loss': .5})):
      with open(os.path.join(settings.model_dir, name + '.json'), 'w') as file:
        json.dump(figures, file)
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
  assert [(ran.train_steps, ran.train_epochs, ran.batch_size, ran.num_gpus, ran.data_dir)
          for ran in runner.ran] == [(1000, None, 256, -1, 'some where'),
                                     (2000, None, 256, -1, 'some where'),
                                     (None, 5, 1024, -1, 'some where')]
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
  lines = capsys.readouterr().out.splitlines()
  assert lines == (tmp_path / 'ledger.md').read_text().splitlines()
  assert all(line.count('|') == 8 for line in lines[2:]) and len(lines) == 4 + len(rows)


def test_within_the_published_range_is_one(run):
  rows = run('fashion_mnist', Runner(fails=[0]))['rows']
  assert rows[0]['measured'] == 'failed' and rows[0]['why'] == 'no such file: data: get it'
  assert rows[0]['ratio'] is None
  figure = WORKLOADS['fashion_mnist'].parts[0].figures[0]
  assert [ledger._ratio(figure, measured) for measured in (.883, .886, .89, .7, None)] == [
      '1', '1', '1', '0.793', None]


def test_on_gpus_as_many_as_published(run):
  runner = Runner()
  rows = run('fashion_mnist', runner, gpus=3)['rows']
  assert [ran.num_gpus for ran in runner.ran] == [2, 2, 2]
  assert rows[1]['why'] == 'different GPUs'
  assert rows[1]['conditions'] == '2 replicas on /gpu:0, /gpu:1, 128 examples per replica, step 77'


def test_on_just_as_many_gpus(run):
  runner = Runner()
  run('mnist_tf_data', runner, gpus=2)
  assert [(ran.num_gpus, ran.num_cpu_replicas) for ran in runner.ran] == [(1, 0), (1, 0), (2, 0)]


def test_what_would_take_days_is_not_run(run):
  runner = Runner()
  result = run('mnist_8gpu', runner)
  assert not runner.ran
  assert {row['measured'] for row in result['rows']} == {'not measured here'}
  assert result['rows'][0]['why'] == 'requires 1 GPU(s), this machine has none'


def test_some_gpus_run_some_of_it(run):
  runner = Runner()
  rows = run('mnist_8gpu', runner, gpus=2)['rows']
  assert [(ran.num_gpus, ran.batch_size) for ran in runner.ran] == [(1, 128)]
  assert [row['measured'] for row in rows] == [
      '117.2', '0.8800', 'not measured here', 'not measured here', 'not measured here']
  assert rows[2]['why'] == 'requires 8 GPU(s), this machine has 2'


def test_speed_up_of_8_gpus(run):
  rows = run('mnist_8gpu', Runner(), gpus=8)['rows']
  assert rows[-1]['what'] == 'speed-up of 8 GPUs' and rows[-1]['measured'] == '1.0'
  assert rows[-1]['ratio'] == '{:.3g}'.format(1 / 6.7)


def test_three_routes(run):
  runner = Runner()
  rows = run('mnist_tf_data', runner)['rows']
  assert [(ran.cache, ran.num_cpu_replicas, ran.batch_size) for ran in runner.ran] == [
      ('none', 0, 256), ('memory', 0, 256), ('none', 2, 512)]
  assert rows[-1]['measured'] == '0.0200' and rows[-1]['conditions'] == 'the runs above'


def test_the_users_devices_win(run):
  runner = Runner()
  run('mnist_tf_data', runner, gpus=2, num_cpu_replicas=4)
  assert [ran.num_cpu_replicas for ran in runner.ran] == [4, 4, 4]


def test_parts_that_were_run_are_not_run_again(run):
  first, second, third = Runner(fails=[1]), Runner(), Runner()
  run('fashion_mnist', first)
  result = run('fashion_mnist', second)
  assert [ran.train_steps for ran in second.ran] == [2000]
  assert run('fashion_mnist', third) == result and not third.ran


def test_another_workloads_folder(run):
  run('mnist_8gpu', Runner())
  message = '--model_dir was created with other flags: --workload=mnist_8g'
  with pytest.raises(UserError, match=message):
    run('oct2017', Runner())


def test_nothing_could_be_run(run, tmp_path):
  message = 'no part of the workload succeeded: no such file: data: '
  with pytest.raises(UserError, match=message) as error:
    run('fashion_mnist', Runner(fails=[0, 1, 2]))
  assert error.value.result['rows'][0]['measured'] == 'failed'
  assert (tmp_path / 'ledger.json').exists()


@pytest.mark.parametrize('workload', sorted(WORKLOADS))
def test_every_part_has_its_flagfile(workload):
  for part in WORKLOADS[workload].parts:
    for gpus in (0, 8):
      arguments = reproduce.part_arguments(
          part, Settings(mode='reproduce', workload=workload, model_dir='x'), gpus)
      assert flags.parse(arguments).mode == 'train_and_evaluate'


def test_a_real_run(run_program, tmp_path, monkeypatch):
  """The child's own files, from a flagfile that takes seconds."""
  (tmp_path / 'fashion_mnist.flags').write_text(
      '--dataset=fashion_mnist_sample\n--model=own_models:two_layers\n--train_steps=12\n')
  (part, *_) = WORKLOADS['fashion_mnist'].parts
  monkeypatch.setitem(WORKLOADS, 'fashion_mnist',
                      WORKLOADS['fashion_mnist']._replace(parts=[part]))
  monkeypatch.setattr(paths, 'CONFIGS_DIR', str(tmp_path))
  monkeypatch.setenv('PYTHONPATH', str(ROOT / 'tests'))
  done = run_program('--mode=reproduce', '--workload=fashion_mnist',
                     '--model_dir={}'.format(tmp_path / 'out'))
  assert done.code == 0, done.err
  ran = json.loads((tmp_path / 'out' / '1000_steps.json').read_text())
  assert ran['throughput']['global_step'] == 12
  assert done.result['rows'][0]['measured'] == '{:.4f}'.format(ran['evaluation']['accuracy'])
