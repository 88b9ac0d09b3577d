"""`--mode=doctor`, end to end, on this machine without a GPU; doctor/ has other machines."""

import os
import sys

from conftest import run_process

from estimator_train.modes.doctor.results import CheckResult


def test_this_machine(run_well, tmp_path):
  """Imports TensorFlow and trains in child processes."""
  done = run_well('--mode=doctor', '--model_dir', tmp_path / 'new', '--data_dir', tmp_path,
                  '--cache', tmp_path / 'cache')
  assert done.err.startswith('this machine is ready: ') and len(done.err.splitlines()) == 2
  *lines, _ = done.out.splitlines()
  result = done.result
  assert result['mode'] == 'doctor' and result['errors'] == 0
  assert lines == [CheckResult(**check).format_line() for check in result['checks']]
  assert len(lines) == result['ok'] + result['warnings']
  assert {check['name'] for check in result['checks']} == {
      'python', 'tensorflow', 'protobuf', 'h5py', 'numpy', 'import', 'gpus', 'cpu',
      'cores', 'memory', 'open files', 'builds', '--model_dir', '--data_dir', '--cache',
      'TF_CONFIG', 'kaggle'}
  assert ': TensorFlow 1.15' in done.out and ' examples/sec with the ' in done.out
  assert os.listdir(str(tmp_path)) == []  # It looks, and leaves nothing.


def test_works_where_tensorflow_does_not(tmp_path):
  (tmp_path / 'tensorflow.py').write_text(
      'import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n')
  done = run_process(sys.executable, '-m', 'estimator_train', '--mode=doctor',
                     env={'PYTHONPATH': str(tmp_path)})
  assert done.returncode == 2 and '"errors": 1' in done.stdout.splitlines()[-1], done.stderr
  assert 'error    import: TensorFlow cannot be imported: killed by SIGILL' in done.stdout
  assert done.stderr.startswith('error: this machine is not ready: 1 error(s): import: ')
