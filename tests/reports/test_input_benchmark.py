"""Known passes give known rates, verdicts and advice."""

import json

import pytest

from estimator_train.reports import input_benchmark
from estimator_train.reports.input_benchmark import Input, Machine
from estimator_train.settings import Settings, groups

SETTINGS = Settings(mode='input_benchmark', batch_size=8, cache='none')
ON_CPU = Machine(cores=4, free_bytes=10 ** 9, is_shared=True, pretrained=False)
ON_GPU = ON_CPU._replace(is_shared=False)


def at(*rates):
  """Returns passes at these rates, of different lengths."""
  return [(rate * secs, secs) for secs, rate in enumerate(rates, 1)]


FILES = Input(kind='image_files', num_examples=1000, prepare_secs=0., cold=at(40, 60, 50),
              warm=at(100, 300, 200), stages={}, bytes_per_example=2e6, was_cold=True,
              cache_bytes=5 * 10 ** 8)


def summarize(measured=FILES, model=(50,), machine=ON_GPU, **flags):
  return input_benchmark.summarize(SETTINGS.evolve(**flags), measured, at(*model), machine)


def test_rates_and_spread():
  result = summarize(model=[90, 70, 80, 10, 99])
  assert result['cold_images_per_sec'] == pytest.approx(50)
  assert result['warm_images_per_sec'] == pytest.approx(200)
  assert result['model_images_per_sec'] == pytest.approx(80)
  assert result['spread']['model'] == {'median': 80, 'min': 10, 'max': 99, 'passes': 5}
  assert result['spread']['cold'] == pytest.approx({'median': 50, 'min': 40, 'max': 60,
                                                    'passes': 3})
  assert result['cold_mb_per_sec'] == pytest.approx(100)
  assert result['warm_mb_per_sec'] == pytest.approx(400)


def test_filling_a_cache_counts_as_cold():
  result = summarize(FILES._replace(prepare_secs=15., cold=at(200)), cache='memory')
  assert result['cold_images_per_sec'] == pytest.approx(1000 / (15 + 1000 / 200))
  assert result['warm_images_per_sec'] == pytest.approx(200)


def test_stages():
  stages = summarize(FILES._replace(stages={
      'read': at(1000, 900, 1100), 'decode': at(250), 'resize': at(260), 'batch': at(200)}))[
          'stages']
  assert list(stages) == ['read', 'decode', 'resize', 'batch']
  assert {name: stage['share'] for name, stage in stages.items()} == pytest.approx(
      {'read': 0.2, 'decode': 0.6, 'resize': 0, 'batch': 0.2})
  assert stages['read']['images_per_sec'] == 1000 and stages['read']['max'] == 1100
  assert stages['resize']['images_per_sec'] == 260


@pytest.mark.parametrize('model, verdict, text', [
    (500, 'input-bound', 'input-bound: the model could take 500 images/sec, 2.50 times what the '
     'input gives (200)'),
    (50, 'compute-bound', 'compute-bound: the input gives 200 images/sec, 4.00 times what the '
     'model takes (50.0)'),
    (200, 'compute-bound', '1.00 times')])
def test_verdict(model, verdict, text):
  result = summarize(model=[model])
  assert result['verdict'] == verdict and text in result['advice']
  assert result['verdict_ratio'] == pytest.approx(model / 200)
  assert result['expected_images_per_sec'] == pytest.approx(
      {'overlap': min(model, 200), 'shared_cores': 1 / (1 / model + 1 / 200)})
  assert 'same' not in result['advice'] and not result['model_shares_cores']


def test_shared_cores_are_told_of():
  advice = summarize(model=[200], machine=ON_CPU)['advice']
  assert 'the same 4 core(s), training gets to about 100 images/sec, and the input takes 50%' \
         ' of the time (with cores of its own: 200 images/sec)' in advice
  assert 'to save of that: give --cache=memory' in advice and 'a GPU' in advice
  advice = summarize(model=[2], machine=ON_CPU)['advice']
  assert 'the input takes 1% of the time' in advice and 'nothing in the input helps' in advice
  assert '--cache=' not in advice


FITS = '--cache=memory (0.5 GB, of memory 1 GB are free)'


@pytest.mark.parametrize('measured, flags, expected', [
    (FILES, {}, 'give ' + FITS),
    (FILES, {'num_parallel_calls': 3},
     'give --num_parallel_calls=0 (as many as cores, 4, instead of 3) and ' + FITS),
    (FILES, {'num_parallel_calls': 4}, 'give ' + FITS),
    (FILES._replace(cache_bytes=2 * 10 ** 9), {},
     'give --cache=FOLDER (2 GB, of memory 1 GB are free)'),
    (FILES, {'cache': 'memory', 'num_parallel_calls': 1},
     'the input is cached already, and no flag makes it faster'),
    (FILES._replace(kind='idx_files'), {'num_parallel_calls': 1}, 'give ' + FITS),
    (FILES._replace(kind='idx_files', cache_bytes=2 * 10 ** 9), {},
     'no flag helps: a cache does not fit (2 GB, of memory 1 GB are free)'),
    (FILES._replace(kind='made_up', cache_bytes=None), {},
     'made-up images cost next to nothing, and no flag makes them cheaper'),
])
def test_which_flag_to_turn_for_the_input(measured, flags, expected):
  assert summarize(measured, [500], **flags)['advice'].endswith('; ' + expected)


@pytest.mark.parametrize('machine, expected', [
    (ON_GPU, 'nothing in the input helps; for the model, try a larger --batch_size or more GPUs'),
    (ON_GPU._replace(pretrained=True), 'more GPUs or --cache_features if the first layers are'),
    (ON_CPU, 'for the model, try a larger --batch_size or a GPU')])
def test_which_flag_to_turn_for_the_model(machine, expected):
  assert expected in summarize(machine=machine)['advice']


CONDITIONS = {'model': 'm', 'dataset': 'd', 'global_batch_size': 8, 'devices': ['/cpu:0']}


def test_table_file_and_result(tmp_path, capsys):
  measured = FILES._replace(stages={'read': at(400), 'batch': at(200)}, was_cold=False)
  result = input_benchmark.write(groups.Run('input_benchmark', str(tmp_path)),
                                 SETTINGS[groups.Input], CONDITIONS, measured, at(50), ON_CPU)
  assert json.loads((tmp_path / 'input_benchmark.json').read_text()) == result
  assert result['mode'] == 'input_benchmark' and result['num_parallel_calls'] == 4
  lines = capsys.readouterr().out.splitlines()
  rows = {line.split()[0]: line.split() for line in lines}
  assert rows['read'] == ['read', '400', '400', 'to', '400', '50%']
  assert rows['warm'] == ['warm', '200', '100', 'to', '300', '400.0']
  assert rows['model'] == ['model', '50.0', '50.0', 'to', '50.0']
  assert lines[-2].startswith('cold is not: the files stayed in memory')
  assert lines[-1] == result['advice']


@pytest.mark.parametrize('was_cold', [True, None])
def test_nothing_is_said_of_cold_passes_that_were(was_cold, capsys):
  measured = FILES._replace(was_cold=was_cold, bytes_per_example=None)
  result = input_benchmark.write(SETTINGS[groups.Run], SETTINGS[groups.Input], CONDITIONS,
                                 measured, at(50), ON_CPU)
  assert 'cold is not' not in capsys.readouterr().out
  assert result['cold_is_from_storage'] is was_cold and result['warm_mb_per_sec'] is None
