"""TensorFlow looks for operations that XLA could compile only if the process can use XLA."""

import os
import sys

import pytest
from conftest import ROOT, run_process

from estimator_train import modes
from estimator_train.settings import Settings
from estimator_train.system.library_call import library_call

# TensorFlow logs this line for each graph in which it does not search.
_SKIPPED = 'Hit fuel limit; not marking any remaining ops as clusterable.'


@pytest.mark.parametrize('flags, is_skipped', [
    ([], True), (['--enable_xla'], False), (['--model=own_models:two_layers'], False),
    (['--dataset=own_models:tiny_images'], False), (['--hooks=user_hooks:make'], False)])
def test_only_runs_that_can_use_xla_search(tmp_path, monkeypatch, flags, is_skipped):
  """In processes of their own, because TensorFlow reads XLA's flags once."""
  monkeypatch.delenv('TF_XLA_FLAGS', raising=False)
  (tmp_path / 'user_hooks.py').write_text('def make(settings):\n  return []\n')
  process = run_process(
      sys.executable, '-m', 'estimator_train', '--mode=train', '--dataset=fashion_mnist_sample',
      '--model=mnist_dense', '--batch_size=8', '--train_steps=1', '--num_gpus=0', '--verbosity=1',
      '--noreport_page', '--model_dir', tmp_path / 'run', *flags, check=True, env={
          'PYTHONPATH': '{0}:{0}/tests:{1}'.format(ROOT, tmp_path), 'TF_CPP_MIN_LOG_LEVEL': '0',
          'TF_CPP_MIN_VLOG_LEVEL': '1'})
  assert (_SKIPPED in process.stderr) == is_skipped


def test_the_process_and_the_flags_of_a_user_stay_unchanged(monkeypatch):
  settings = Settings(model_dir='x', train_steps=1)
  monkeypatch.delenv('TF_XLA_FLAGS', raising=False)
  with library_call():
    modes._skip_search_for_xla_clusters(settings)
  assert 'TF_XLA_FLAGS' not in os.environ
  monkeypatch.setenv('TF_XLA_FLAGS', '--tf_xla_min_cluster_size=2')
  modes._skip_search_for_xla_clusters(settings)
  assert os.environ['TF_XLA_FLAGS'] == '--tf_xla_min_cluster_size=2'
