"""The line of the log about an evaluation."""

from estimator_train.reports import evaluation


def test_the_line_has_five_metrics():
  values = {'accuracy': .784, 'average_loss': .58063, 'calibration_error': .0281, 'macro_f1': 1e-6,
            'macro_precision': 1., 'macro_recall': .5, 'top_5_accuracy': .9}
  assert evaluation._format_log_line(values, 1000, 141) == (
      'evaluation: accuracy 0.784, average loss 0.581, calibration error 0.0281, '
      'macro f1 1.00e-06, macro precision 1.00 (1,000 examples at step 141)')
  assert evaluation._format_log_line({'loss': 2.}, 1, 9) == (
      'evaluation: loss 2.00 (1 example at step 9)')
