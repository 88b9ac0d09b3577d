"""Known passes give known rates, verdicts and advice."""

import json

import pytest

from estimator_train.reports import input_benchmark
from estimator_train.reports.input_benchmark import BenchmarkEnvironment, ReportedInputMeasurement
from estimator_train.settings import Settings, groups

SETTINGS = Settings(mode='input_benchmark', batch_size=8, cache='none')
ON_CPU = BenchmarkEnvironment(cores=4, free_bytes=10 ** 9, model_shares_cores=True,
                              is_pretrained=False)
ON_GPU = ON_CPU._replace(model_shares_cores=False)


def at(*rates):
  """Returns passes at these rates, of different lengths."""
  return [(rate * secs, secs) for secs, rate in enumerate(rates, 1)]


FILES = ReportedInputMeasurement(
    format_name='image_files', num_examples=1000, prepare_secs=0., cold_passes=at(40, 60, 50),
    warm_passes=at(100, 300, 200), stage_passes={}, bytes_per_example=2e6,
    cold_is_from_storage=True, cache_bytes=5 * 10 ** 8)


def summarize(measured=FILES, model=(50,), environment=ON_GPU, **flags):
  return input_benchmark.summarize(SETTINGS.evolve(**flags), measured, at(*model), environment)


def test_rates_and_spread():
  result = summarize(model=[90, 70, 80, 10, 99])
  for name, rate in (('cold_images', 50), ('warm_images', 200), ('model_images', 80),
                     ('cold_mb', 100), ('warm_mb', 400)):
    assert result[name + '_per_sec'] == pytest.approx(rate)
  assert result['spread']['model'] == {'median': 80, 'min': 10, 'max': 99, 'passes': 5}
  assert result['spread']['cold'] == pytest.approx(
      {'median': 50, 'min': 40, 'max': 60, 'passes': 3})
  # Filling a cache counts as cold, where there is an epoch.
  filled = FILES._replace(prepare_secs=15., cold_passes=at(200))
  assert summarize(filled, cache='memory')['cold_images_per_sec'] == pytest.approx(
      1000 / (15 + 1000 / 200))
  assert summarize(filled._replace(num_examples=None))['cold_images_per_sec'] == 200


def test_stages():
  stages = summarize(FILES._replace(stage_passes={
      'read': at(1000, 900, 1100), 'decode': at(250), 'resize': at(260), 'batch': at(200)}))[
          'stages']
  assert {name: stage['share'] for name, stage in stages.items()} == pytest.approx(
      {'read': 0.2, 'decode': 0.6, 'resize': 0, 'batch': 0.2})
  assert stages['read']['images_per_sec'] == 1000 and stages['read']['max'] == 1100
  assert stages['resize']['images_per_sec'] == 260


def test_verdict():
  for model, environment, verdict, *texts in (
      (500, ON_GPU, 'input-bound', 'input-bound: the model can process 500 images/sec, 2.50 times '
       'the rate of the input (200)'),
      (50, ON_GPU, 'compute-bound', 'compute-bound: the input delivers 200 images/sec, 4.00 times '
       'the rate of the model (50.0)'),
      (200, ON_CPU, 'compute-bound', '1.00 times', 'the same 4 core(s), so training reaches about '
       '100 images/sec and the input takes 50% of the time (on separate cores: 200 images/sec)',
       'to reduce the time of the input: set --cache=memory', 'a GPU'),
      (2, ON_CPU, 'compute-bound', 'takes 1% of the time', 'a faster input would not help')):
    result = summarize(model=[model], environment=environment)
    assert result['verdict'] == verdict and all(text in result['advice'] for text in texts)
    assert result['verdict_ratio'] == pytest.approx(model / 200)
    assert result['expected_images_per_sec'] == pytest.approx(
        {'overlap': min(model, 200), 'shared_cores': 1 / (1 / model + 1 / 200)})
    assert ('same' in result['advice']) == result['model_shares_cores'] == (environment is ON_CPU)


FITS = '--cache=memory (needs 0.5 GB, 1 GB of memory are free)'
DOES_NOT_FIT = {'cache_bytes': 2 * 10 ** 9}


def test_advice():
  for change, flags, expected in (
      ({}, {}, 'set ' + FITS), ({}, {'num_parallel_calls': 4}, 'set ' + FITS),
      ({'cache_bytes': 10 ** 9}, {}, 'set --cache=memory (needs 1 GB, 1 GB of memory are free)'),
      ({}, {'num_parallel_calls': 3},
       'set --num_parallel_calls=0 (one per core, 4, instead of 3) and ' + FITS),
      (DOES_NOT_FIT, {}, 'set --cache=FOLDER (needs 2 GB, 1 GB of memory are free)'),
      ({}, {'cache': 'memory', 'num_parallel_calls': 1},
       'the input is already cached, and no flag makes it faster'),
      ({'format_name': 'idx_files'}, {'num_parallel_calls': 1}, 'set ' + FITS),
      (dict(DOES_NOT_FIT, format_name='idx_files'), {}, 'no flag helps: the cache does not fit '
       'into memory (needs 2 GB, 1 GB of memory are free)'),
      ({'format_name': 'synthetic', 'cache_bytes': None}, {},
       'synthetic images cost almost nothing, and no flag makes them faster')):
    advice = summarize(FILES._replace(**change), [500], **flags)['advice']
    assert advice.endswith('; ' + expected)
  for environment, expected in (
      (ON_GPU, 'a faster input would not help; to speed up the model, try a larger --batch_size '
       'or more GPUs'),
      (ON_GPU._replace(is_pretrained=True), 'more GPUs or --cache_features if the first layers'),
      (ON_CPU, 'to speed up the model, try a larger --batch_size or a GPU')):
    assert expected in summarize(environment=environment)['advice']


def test_table_file_and_result(tmp_path, capsys):
  for from_storage, size in ((False, 2e6), (True, None), (None, None)):
    result = input_benchmark.write_input_benchmark_report(
        groups.Run('input_benchmark', str(tmp_path)), SETTINGS[groups.Input],
        {'model': 'm', 'dataset': 'd', 'global_batch_size': 8, 'devices': ['/cpu:0']},
        FILES._replace(stage_passes={'read': at(400), 'batch': at(200)}, bytes_per_example=size,
                       cold_is_from_storage=from_storage), at(50), ON_CPU)
    assert json.loads((tmp_path / 'input_benchmark.json').read_text()) == result
    assert result['mode'] == 'input_benchmark' and result['num_parallel_calls'] == 4
    assert result['cold_is_from_storage'] is from_storage
    assert result['warm_mb_per_sec'] == (size and 400)
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows['read'] == ['400', '400', 'to', '400', '50%']
    assert rows['warm'] == ['200', '100', 'to', '300'] + (['400.0'] if size else [])
    assert rows['model'] == ['50.0', '50.0', 'to', '50.0'] and lines[-1] == result['advice']
    assert lines[-2].startswith('the cold rate does not measure storage: the files stayed') == (
        from_storage is False)
