"""What the doctor finds from facts about a machine, of machines that are not here too."""

import importlib.util
import json
import os
import sys

import pytest

from estimator_train.doctor import (
    build_rates,
    checkpoint_interval,
    engine_choice,
    folders,
    gpu_use,
    gpus,
    host,
    kaggle_key,
    packages,
    tensorflow_import,
    tf_config_check,
)
from estimator_train.doctor.build_rates import BuildRate
from estimator_train.doctor.commands import CommandResult
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.settings import Settings

STOCK, ONEDNN = TensorFlowBuild('tensorflow', '1.15.0'), TensorFlowBuild(
    'intel-tensorflow', '1.15.2')
NVIDIAS = TensorFlowBuild('nvidia-tensorflow', '1.15.5+nv23.3')


def assert_found(rows):
  """Checks rows of (check result, its level, what its line has; with `-` before: has not)."""
  for check, level, *texts in rows:
    assert check.level == level, check
    for text in texts:
      assert (text.lstrip('-') in check.format_line()) == (not text.startswith('-')), check


def test_python():
  here = packages.Interpreter('CPython', (3, 7, 16), 64, 'Linux', 'x86_64')
  assert_found([(packages.check_python(packages.inspect_python()), 'ok')])
  for level, changes in (
      ('ok', [{'version': (3, 6, 0)}, {'version': (3, 8, 10)}]),
      ('error', [{'version': (3, 5, 9)}, {'version': (3, 9, 0)}, {'implementation': 'PyPy'},
                 {'bits': 32}, {'machine': 'aarch64'}, {'system': 'Darwin'}])):
    assert_found((packages.check_python(here._replace(**change)), level) for change in changes)


def test_builds_of_tensorflow():
  nv, check = '1.15.5+nv23.3', packages.check_tensorflow
  single = [({'tensorflow': '1.15.0'}, 'ok', 'stock'), ({'tensorflow-gpu': '1.15.5'}, 'ok', 'sto'),
            ({'intel-tensorflow': '1.15.2'}, 'ok', 'oneDNN'),
            ({'nvidia-tensorflow': nv}, 'ok', 'NVIDIA'), ({'tensorflow': nv}, 'ok', 'NVIDIA'),
            ({'nvidia-tensorflow': nv, 'tensorflow': nv}, 'ok', 'NVIDIA'),
            ({'tensorflow': '2.4.0'}, 'error', 'tensorflow 2.4.0'),
            ({'tensorflow': '1.14.0'}, 'error', 'tensorflow 1.14.0')]
  several = [({}, 'error', 'not installed'),
             ({'tensorflow': '1.15.0', 'tensorflow-gpu': '1.15.0'}, 'error',
              'tensorflow 1.15.0 and tensorflow-gpu 1.15.0 are',
              'pip uninstall tensorflow tensorflow-gpu`'),
             ({'intel-tensorflow': '1.15.2', 'tensorflow': '1.15.0'}, 'error',
              'intel-tensorflow 1.15.2 are', 'pip uninstall tensorflow intel-tensorflow`')]
  assert_found((check(installed), *expected) for installed, *expected in single + several)
  assert all(packages.installed_build(installed) for installed, *_ in single)
  assert not any(packages.installed_build(installed) for installed, *_ in several)
  assert TensorFlowBuild('nvidia-tensorflow', '1.15.5').is_nvidia_build
  assert packages.installed_build(packages.installed_versions()) is not None


def test_packages_under_tensorflow():
  good = {'tensorflow': '1.15.0', 'protobuf': '3.19.6', 'h5py': '2.10.0', 'numpy': '1.18.5'}
  for change, python, levels in (
      ({}, '3.7', 'ok ok ok'), ({'protobuf': '3.20.3'}, '3.7', 'ok ok ok'),
      ({'protobuf': '3.20.3'}, '3.6', 'error ok ok'), ({'protobuf': '4.21'}, '3.7', 'error ok ok'),
      ({'h5py': '3.1.0'}, '3.7', 'ok error ok'), ({'numpy': '1.19.0'}, '3.7', 'ok ok warning'),
      ({'h5py': '3.1.0', 'tensorflow': '1.15.5+nv23.3'}, '3.8', 'ok warning ok')):
    found = packages.check_pins(dict(good, **change), packages.read_requirements(), python)
    assert [check.name for check in found] == ['protobuf', 'h5py', 'numpy']
    assert ' '.join(check.level for check in found) == levels
    assert all(check.level == 'ok' or 'pip install "' + check.name in check.remedy
               for check in found)
  del good['h5py']
  assert_found([
      (packages.check_pins(good, packages.read_requirements(), '3.7')[1], 'error', 'not installed'),
      (packages.check_pillow({'pillow': '9.5.0'}), 'ok', '9.5.0'),
      (packages.check_pillow({}), 'warning', 'pip install Pillow')])


def test_cpu_memory_and_limits():
  good = host.Host('a CPU', frozenset(('avx', 'avx2')), 4, None, 8 << 30, 1024)
  avx512 = TensorFlowBuild('intel-tensorflow-avx512', '1.15.2')
  for change, build, name, level in (
      ({}, STOCK, None, None), ({'quota_cores': 4.}, None, None, None),
      ({'cpu_flags': frozenset(('sse4_2',))}, STOCK, 'cpu', 'error'),
      ({'cpu_flags': frozenset()}, STOCK, 'cpu', 'warning'), ({}, avx512, 'cpu', 'error'),
      ({'cpu_flags': frozenset(('avx', 'avx2', 'avx512f'))}, avx512, None, None),
      ({'quota_cores': 1.5}, STOCK, 'cores', 'warning'),
      ({'memory_bytes': 1 << 30}, STOCK, 'memory', 'warning'),
      ({'max_open_files': 256}, STOCK, 'open files', 'warning'),
      ({'max_open_files': None}, STOCK, None, None)):
    found = host.check_host(good._replace(**change), build)
    assert len(found) == 4
    assert [(check.name, check.level) for check in found if check.level != 'ok'] == (
        [(name, level)] if name else [])
  assert_found([(host.check_host(good, STOCK)[2], 'ok', '8.6 GB available')])
  threads = '--intra_op_parallelism_threads=1 --num_parallel_calls=1'
  assert_found(
      (host.check_host(good._replace(quota_cores=.5), build)[1], 'warning', 'the CPU time of 0.5',
       remedy + threads) for build, remedy in (
           (STOCK, 'give --inter_op_parallelism_threads=1 '),
           (ONEDNN, 'set `OMP_NUM_THREADS=1` and give ')))
  for text, cores in (('150000 100000\n', 1.5), ('max 100000\n', None), ('-1\n 100000\n', None),
                      (' ', None), ('200000\n 100000\n', 2.)):
    assert host.parse_quota(text) == cores
  found = host.inspect_host()
  assert 'avx' in found.cpu_flags and found.cores == len(os.sched_getaffinity(0))
  assert found.memory_bytes > 1 << 28


def test_folders(tmp_path):
  good = folders.Folder('--model_dir', '/a/b', '/a/b', True, True, True, 10**10)
  for change, level, text in (
      ({}, 'ok', '/a/b, 10.0 GB free'), ({'free_bytes': 10**6}, 'error', '0.0 GB free'),
      ({'existing_path': '/a'}, 'ok', '/a/b (does not exist yet), 10.0 GB free'),
      ({'free_bytes': 10**9}, 'warning', '1.0 GB free'),
      ({'is_writable': False}, 'error', 'cannot be written to'),
      ({'is_folder': False}, 'error', 'is not a folder'),
      ({'flag': '--cache', 'free_bytes': 10**6}, 'error', '0.0 GB free'),
      ({'flag': '--data_dir'}, 'ok', '10.0 GB free'),
      ({'flag': '--data_dir', 'free_bytes': 0}, 'warning', 'downloading'),
      ({'flag': '--data_dir', 'is_writable': False}, 'ok', 'read-only'),
      ({'flag': '--data_dir', 'is_readable': False}, 'error', 'cannot be read'),
      ({'flag': '--data_dir', 'existing_path': '/a', 'is_writable': False}, 'error',
       'cannot be written')):
    assert_found([(folders.check_folders([good._replace(**change)])[0], level, text)])
  (tmp_path / 'file').write_text('')
  found = folders.inspect_folders(Settings(
      mode='doctor', model_dir=str(tmp_path / 'new' / 'run'), data_dir=str(tmp_path / 'file'),
      cache=str(tmp_path), export_dir='/proc/sys/none'))  # Not writable for root either.
  assert [(each.flag, each.existing_path, each.is_folder, each.is_writable, each.free_bytes > 0)
          for each in found] == [
              ('--model_dir', str(tmp_path), True, True, True),
              ('--export_dir', '/proc/sys', True, False, False),
              ('--data_dir', str(tmp_path / 'file'), False, False, True),
              ('--cache', str(tmp_path), True, True, True)]
  assert folders.inspect_folders(Settings(mode='doctor', cache='memory')) == []


def test_gpus_that_the_build_and_the_driver_do_not_support():
  def check(capability, build, driver='535.1'):
    gpu = gpus.Gpu('GPU', capability, driver, 40 << 30)
    found = gpus.check_gpus(gpus.GpuInventory((gpu, gpu)), build)  # Each kind is reported once.
    assert found[0].level == 'ok' and found[0].found.count('{}.{}'.format(*capability)) == 2
    return {check.name: check for check in found}

  for build, remedies in (
      (STOCK, {(3, 0): 'no build', (3, 5): '', (7, 5): '', (8, 0): gpus.NVIDIA_CONTAINER,
               (9, 0): gpus.NVIDIA_CONTAINER, (10, 0): 'no build'}),
      (NVIDIAS, {(3, 7): 'stock', (6, 0): '', (8, 0): '', (9, 0): '', (10, 0): 'no build'})):
    for capability, remedy in remedies.items():
      found = check(capability, build).get('gpu build')
      assert bool(found) == bool(remedy), capability
      assert not remedy or found.level == 'error' and remedy in found.remedy
  for build, level, drivers in (
      (STOCK, 'ok', '410.48 535.104.05 [N/A]'), (STOCK, 'error', '410.47 390.116'),
      (NVIDIAS, 'ok', '530.30.02 450.51.06 525.85.12'),
      (NVIDIAS, 'warning', '470.42.01 520.61 440.33.01')):
    for driver in drivers.split():
      assert check((7, 5), build, driver)['gpu driver'].level == level, driver
  assert_found((gpus.check_gpus(inventory, STOCK)[0], *expected) for inventory, *expected in (
      (gpus.GpuInventory(), 'ok', 'no GPU'),
      (gpus.GpuInventory(num_pci_devices=2), 'warning', '2 NVIDIA device(s)'),
      (gpus.GpuInventory(failure='exit code 9: no driver'), 'error', 'exit code 9: no driver')))


def test_use_of_several_gpus():
  assert_found((gpu_use.check_visible_gpus(2, *seen), *expected) for seen, *expected in (
      ((2, True, None), 'ok', '2 of 2'), ((0, True, None), 'error', 'usual reasons'),
      ((1, True, None), 'error', '1 of 2'), ((0, False, None), 'error', 'does not support GPUs'),
      ((1, True, ''), 'warning', 'CUDA_VISIBLE_DEVICES=')))
  for shm_bytes, locked_bytes, levels in (
      (1 << 30, None, ['ok']), (64 << 20, None, ['warning']), (1 << 30, 65536, ['warning']),
      (64 << 20, 65536, ['warning', 'warning'])):
    found = gpu_use.check_nccl(2, gpu_use.NcclMemoryLimits(shm_bytes, locked_bytes))
    assert [check.level for check in found] == levels
    assert all('--all_reduce_alg=hierarchical_copy' in check.remedy and (
        check.level == 'ok' or '--shm-size=1g --ulimit memlock=-1' in check.remedy)
               for check in found)
  assert gpu_use.inspect_memory_limits().shm_bytes > 0
  assert_found([(gpu_use.check_libraries(()), 'ok'),
                (gpu_use.check_libraries(('libcudnn.so.7',)), 'error', 'libcudnn.so.7')])


def test_measured_rates_decide_which_build_is_recommended():
  def check(rates, build=STOCK, **options):
    return build_rates.check_build_rates(
        [BuildRate(name, rate, '' if rate else 'ended by SIGILL') for name, rate in rates], build,
        **options)

  stock, onednn = ('stock', 1000.), ('oneDNN', 2600.)
  assert_found([
      (check([stock, onednn]), 'ok', 'the oneDNN build is 2.6 times as fast',
       '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh` uses it'),
      (check([('oneDNN', 1000.), ('stock', 1200.)], ONEDNN), 'ok',
       'the stock build is 1.2 times as fast', '`./run_train.sh` uses it'),
      (check([onednn, stock], ONEDNN), 'ok', 'the oneDNN build is 2.6 times', '-uses it'),
      (check([stock, ('oneDNN', 1140.)]), 'ok', '1,000 examples/sec with the stock build, 1,140 '
       'examples/sec with the oneDNN build: a difference below 15% can be chance', '-uses it'),
      (check([stock, ('oneDNN', None)]), 'ok', 'not with the oneDNN build (ended by SIGILL)'),
      (check([('stock', None), onednn]), 'warning', 'not with the stock build (ended by SIGILL)',
       sys.executable),
      (check([stock]), 'ok', '1,000 examples/sec with the stock build', 'pip uninstall tensorflow`',
       '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh --mode=doctor` installs',
       'pip install intel-tensorflow=='),
      (check([onednn], ONEDNN), 'ok', '`./run_train.sh --mode=doctor` installs the stock build'),
      (check([stock], in_image=True), 'ok', 'docker build ', '-pip'),
      (check([onednn], ONEDNN, in_image=True), 'ok', '-docker', '-install')])


def test_credentials_for_kaggle_are_found_and_never_shown(tmp_path, monkeypatch):
  secret = 'a0b1c2d3e4'

  def check(is_needed=False, in_image=False, **environment):
    sources = kaggle_key.find_credentials(dict(environment, KAGGLE_CONFIG_DIR=str(tmp_path)))
    found = kaggle_key.check_credentials(sources, is_needed, in_image)
    assert secret not in repr((sources, found))
    return found

  assert_found([
      (check(), 'ok', 'no credentials'), (check(True), 'warning', 'no credentials', '-/tmp/.kag'),
      (check(True, in_image=True), 'warning', '/tmp/.kaggle'),
      (check(KAGGLE_USERNAME=secret, KAGGLE_KEY=secret), 'ok', 'credentials in the environment'),
      (check(KAGGLE_USERNAME=secret), 'warning', 'KAGGLE_USERNAME is set without')])
  whole = json.dumps({'username': secret, 'key': secret})
  for text, mode, *expected in (
      (whole, 0o600, 'ok', 'credentials in '), (whole, 0o620, 'ok', 'credentials in '),
      (whole, 0o644, 'warning', 'other users may read', 'chmod 600 '),
      (whole, 0o640, 'warning', 'other users may read'),
      (json.dumps({'username': secret}), 0o600, 'warning', 'lacks'),
      (secret, 0o600, 'warning', 'cannot be read'), (json.dumps([secret]), 0o600, 'warning')):
    (tmp_path / 'kaggle.json').write_text(text)
    (tmp_path / 'kaggle.json').chmod(mode)
    assert_found([(check(), *expected)])
  monkeypatch.setenv('HOME', str(tmp_path))
  for made, expected in (('.', '.kaggle'), ('.config/kaggle', '.config/kaggle'),
                         ('.kaggle', '.kaggle')):  # The usual folders.
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    assert kaggle_key.find_credentials({}).path == str(tmp_path / expected / 'kaggle.json')


def test_tf_config():
  """tests/cluster/test_tf_config.py has every mistake."""
  task = json.dumps({'cluster': {'worker': ['a:1', 'b:2'], 'ps': ['c:3']},
                     'task': {'type': 'ps', 'index': '0'}})
  no_task = '{"task": {"type": "worker", "index": 0}}'
  for text, workers, *expected in (
      (None, 1, 'ok', 'not set: the run uses this machine alone'), (task, 2, 'ok', 'ps 0 of 2 wor'),
      ('{}', 1, 'ok', 'this machine alone'), (no_task, 1, 'ok', 'this machine alone'),
      ('{', 1, 'error', 'TF_CONFIG: it must be JSON', 'give {"cluster": ')):
    assert_found([(tf_config_check.check_tf_config(text), *expected)])
    assert tf_config_check.count_workers(text) == workers


def test_engine(monkeypatch, tmp_path):
  for strategy, num_workers, weight_bytes, remedies in (
      ('multi_worker_mirrored', 2, 4e5, ['']), ('horovod', 2, 8e7, ['']),
      ('multi_worker_mirrored', 2, 8e7, ['compare with --distribution_strategy=horovod']),
      ('horovod', 2, 4e5, ['compare with --distribution_strategy=multi_worker_mirrored']),
      ('mirrored', 1, 8e7, []), ('multi_worker_mirrored', 1, 8e7, []),
      ('multi_worker_mirrored', 2, None, []), ('parameter_server', 2, 8e7, [])):
    for spec, level in ((None, 'error'), (object(), 'ok')):
      monkeypatch.setattr(importlib.util, 'find_spec', lambda name, spec=spec: spec)
      checks = list(engine_choice.check_engine(strategy, num_workers, weight_bytes))
      assert [check.remedy for check in checks if check.name == 'engine'] == remedies
      assert [check.level for check in checks if check.name == 'horovod'] == (
          [level] if strategy == 'horovod' else [])
  folder = tmp_path / 'a [model]'
  assert [engine_choice.read_weight_bytes(path) for path in (str(folder), None)] == [None] * 2
  (folder / 'keras').mkdir(parents=True)
  for name in ('data-00000-of-00002', 'data-00001-of-00002', 'index'):
    (folder / 'keras' / ('keras_model.ckpt.' + name)).write_bytes(b'x' * 500)
  assert engine_choice.read_weight_bytes(str(folder)) == 1000


def test_checkpoint_interval(run_program, tmp_path, monkeypatch):
  # sqrt(5 / 2000) = 0.05.
  assert checkpoint_interval.daly_interval(5., 1000.) == pytest.approx(
      100 * (1 + .05 / 3 + .0025 / 9) - 5)
  assert checkpoint_interval.daly_interval(3000., 1000.) == 1000.  # Saves never succeed.
  for content in ('{"pauses": {"checkpoint": {"count": 0, "secs": 0}}}', '[]', '{"pauses": {}}'):
    assert checkpoint_interval.read_save_secs(str(tmp_path)) is None
    (tmp_path / 'throughput.json').write_text(content)
  (tmp_path / 'throughput.json').write_text('{"pauses": {"checkpoint": {"count": 2, "secs": 8}}}')
  imported = tensorflow_import.ImportResult(CommandResult(0, '', '', 1.), '1.15.0', 1., True, 0)
  monkeypatch.setattr(tensorflow_import, 'import_in_child', lambda: imported)
  monkeypatch.setattr(build_rates, 'measure_builds', lambda build: [BuildRate('stock', 1000.)])
  best = ('a checkpoint takes 4 s; if each of {} task(s) is lost once in 30 days, saving every {} '
          's wastes the least time').format
  for num_workers, argument, level, found, remedy in (
      (1, '--save_checkpoints_secs=600', 'ok', best(1, 4551), ''),
      (1024, '--save_checkpoints_secs=100', 'ok', best(1024, 140), ''),
      (1024, '--save_checkpoints_steps=100000', 'ok', best(1024, 140), ''),
      (1024, '--seed=1', 'warning', best(1024, 140) + ', not every 600 s',
       'set --save_checkpoints_secs=140')):
    monkeypatch.setenv('TF_CONFIG', json.dumps({
        'cluster': {'worker': ['host:{}'.format(port) for port in range(1, 1 + num_workers)]},
        'task': {'type': 'worker', 'index': 0}}))
    done = run_program('--mode=doctor', '--model_dir', tmp_path, argument)
    assert {'name': 'checkpoint interval', 'level': level, 'found': found,
            'remedy': remedy} in done.result['checks']
