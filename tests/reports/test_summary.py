"""The last lines of a training run's log."""

import logging

import pytest

from estimator_train.reports import summary

PATHS = {'report': None, 'model': 'runs/x/model.h5', 'checkpoint': 'runs/x/model.ckpt-9'}
BEST = {'global_step': 6, 'accuracy': 0.75, 'average_loss': 0.5}


@pytest.fixture
def lines(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')

  def log(result, best_metric='accuracy'):
    summary.log_summary(dict(result, global_step=9), best_metric, PATHS)
    return [record.getMessage() for record in caplog.records]

  return log


def test_of_an_evaluated_run(lines):
  assert lines({'accuracy': 0.5, 'best': BEST, 'examples_per_sec': 1234.5,
                'verdict': 'input-bound'}) == [
      'finished at step 9', '  accuracy    0.5000', '  best        accuracy 0.7500 at step 6',
      '  throughput  1,234 examples/sec; input-bound: steps wait for input',
      '  model       runs/x/model.h5', '  checkpoint  runs/x/model.ckpt-9']


def test_of_another_metric_at_the_last_step(lines):
  assert lines({'accuracy': 0.5, 'best': dict(BEST, global_step=9)}, 'average_loss')[2] == (
      '  best        average loss 0.5000 at step 9, the last step')


def test_of_a_run_without_evaluation_whose_wait_for_input_is_not_known(lines):
  assert lines({'examples_per_sec': 10., 'verdict': None}) == [
      'finished at step 9', '  throughput  10 examples/sec', '  model       runs/x/model.h5',
      '  checkpoint  runs/x/model.ckpt-9']
