"""Which examples of an evaluation are kept."""

import numpy as np
import pytest

from estimator_train.training.evaluation_metrics import SampleCollector, SampledTensors

EVENLY = [0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99]


@pytest.mark.parametrize('num_examples, batch_size, is_known, kept', [
    (100, 1, True, EVENLY), (100, 7, True, EVENLY), (100, 1000, True, EVENLY),
    (5, 2, True, [0, 1, 2, 3, 4]), (100, 8, False, list(range(12))),
    (5, 8, False, [0, 1, 2, 3, 4])])
def test_examples_from_first_to_last(num_examples, batch_size, is_known, kept):
  """Of examples whose image, class and output all are their number."""
  collector = SampleCollector(
      [SampledTensors(None, 12, ['image', 'class', 'output']),
       SampledTensors(None, 12, ['wrong', 'wrong', 'wrong'], True),
       SampledTensors('number', 1000, ['target', 'output'])],
      num_examples if is_known else None, batch_size)
  for start in range(0, num_examples, batch_size):
    numbers = np.arange(num_examples)[start:start + batch_size]
    values = {'image': numbers, 'class': numbers, 'target': numbers, 'output': numbers + 1,
              'wrong': numbers[numbers % 2 == 1][:12]}
    collector.add_batch([[values[name] for name in names] for names in collector.tensors()])
  assert collector.samples.images == [(number, number, number + 1) for number in kept]
  mistakes = [sample.class_index for sample in collector.samples.mistakes]
  assert mistakes == sorted(set(mistakes)) and all(number % 2 for number in mistakes)
  assert len(mistakes) == min(12, num_examples // 2)
  if is_known and batch_size < 10 < num_examples:  # They are from all parts of the data.
    assert mistakes[-1] >= 90
  (name, targets, outputs), = collector.samples.outputs
  assert name == 'number' and (outputs - targets == 1).all()
  assert targets.tolist() == list(range(num_examples))
