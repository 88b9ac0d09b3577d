"""The published workloads from their flagfiles, on the real data where it is there."""

import hashlib

import generated_data
import pytest
from conftest import ROOT, real_data

from estimator_train.datasets import fashion_mnist, mnist

pytestmark = pytest.mark.slow

CONFIGS = 'estimator_train/configs/'


@pytest.fixture(params=['real', 'generated'])
def data(request):
  """Whether the data is the published one, or easy and small: 2,000 images, and 500 to test."""
  return request.param


@pytest.fixture
def flagfile(data, tmp_path, monkeypatch):
  """Returns the flags of a workload, with the folder of its data."""
  def flags(name, data_name, model_dir):
    folder = tmp_path / 'data'
    if data == 'real':
      folder = real_data(data_name)
    elif data_name == 'oct2017':
      generated_data.write_oct2017(folder)
    else:
      generated_data.write_idx_files(folder, 2000, 500)
      publish(folder)
    return ['--flagfile={}{}.flags'.format(CONFIGS, name), '--data_dir={}'.format(folder),
            '--model_dir={}'.format(model_dir)]

  def publish(folder):
    """Has the generated files be the published ones."""
    for module in (mnist, fashion_mnist):
      contents = [(folder / file.name).read_bytes() for file in module.FILES]
      monkeypatch.setattr(module, 'FILES', tuple(
          file._replace(size=len(content), md5=hashlib.md5(content).hexdigest())
          for file, content in zip(module.FILES, contents)))

  return flags


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
  monkeypatch.chdir(str(ROOT))


ROUTES = ('--cache=none', '--cache=memory', '--num_cpu_replicas=2')


# One epoch at the published batch of 256 takes plain `model.fit` of TensorFlow 1.15 to 0.928 and
# 0.933 (seeds 1 and 2), so 0.95 needs more steps than that.
@pytest.mark.parametrize('data, batch_size, at_least, routes', [
    ('real', 256, 0.92, ROUTES), ('real', 32, 0.95, ROUTES[1:2]), ('generated', 32, 0.95, ROUTES)],
                         indirect=['data'])
def test_three_input_routes_reach_the_same_place(run_program, flagfile, tmp_path, batch_size,
                                                 at_least, routes):
  accuracies = []
  flags = flagfile('mnist_tf_data', 'mnist', 'any')
  for route in routes:
    done = run_program(*flags, '--model_dir={}'.format(tmp_path / route), '--train_epochs=1',
                       '--batch_size={}'.format(batch_size), route)
    assert done.code == 0, done.err
    accuracies.append(done.result['accuracy'])
  assert min(accuracies) >= at_least
  assert max(accuracies) - min(accuracies) <= 0.005


@pytest.mark.parametrize('extra', [
    ['--num_cpu_replicas=2'], ['--num_cpu_replicas=2', '--distribution_strategy=mirrored'], []])
def test_mnist_8gpu_takes_a_few_steps(run_program, flagfile, tmp_path, extra):
  done = run_program(*flagfile('mnist_8gpu', 'mnist', tmp_path), '--mode=train', '--train_steps=2',
                     '--batch_size=32', *extra)
  assert done.code == 0, done.err
  assert done.result['global_step'] == 2 and (tmp_path / 'model.h5').exists()


@pytest.mark.parametrize('form', ['simple', 'practical'])
def test_mnist_multi_worker_on_one_worker(run_program, flagfile, tmp_path, form):
  arguments = flagfile('mnist_multi_worker_' + form, 'fashion-mnist', tmp_path)
  if form == 'practical':
    arguments += ['--train_epochs=1']
  done = run_program(*arguments, '--log_every_steps=10')
  assert done.code == 0, done.err
  losses = [float(line.split('loss ')[1].split(',')[0]) for line in done.err.splitlines()
            if line.startswith('step ')]
  assert losses[-1] < losses[0]
  # Chance is 0.1; the simple form takes few steps.
  assert done.result['accuracy'] > (0.4 if form == 'simple' else 0.7)


def test_oct2017_takes_a_few_steps(run_program, flagfile, data, tmp_path):
  done = run_program(*flagfile('oct2017', 'oct2017', tmp_path), '--image_size=32,32',
                     '--weights=none', '--train_steps=2', '--batch_size=8')
  assert done.code == 0, done.err
  counts = {'real': '991 training images: CNV 342, DME 108, DRUSEN 81, NORMAL 460',
            'generated': '8 training images: CNV 2, DME 2, DRUSEN 2, NORMAL 2'}
  assert counts[data] in done.err
  assert done.result['global_step'] == 2 and done.result['examples'] == 32
  assert (tmp_path / 'labels.txt').read_text().split() == ['CNV', 'DME', 'DRUSEN', 'NORMAL']


def test_evaluation_of_all_examples(run_program, flagfile, data, tmp_path):
  """The same figures for any batch size and any number of replicas."""
  arguments = flagfile('fashion_mnist', 'fashion-mnist', tmp_path)
  assert run_program(*arguments, '--mode=train', '--train_steps=5').code == 0
  losses, accuracies = [], set()
  few = ((1000, 1), (256, 2), (999, 3))
  for batch_size, replicas in few + (
      () if data == 'real' else ((256, 1), (999, 1), (7, 1), (1000, 2), (9, 3))):
    done = run_program(*arguments, '--mode=evaluate', '--batch_size={}'.format(batch_size),
                       '--num_cpu_replicas={}'.format(replicas))
    assert done.code == 0 and done.result['examples'] == (10000 if data == 'real' else 500), (
        done.err)
    losses.append(done.result['average_loss'])
    accuracies.add(done.result['accuracy'])
  assert max(losses) - min(losses) < 1e-6
  assert len(accuracies) == 1
