"""The model of the time of a step, fitted to times of known terms."""

import numpy as np
import pytest

from estimator_train.benchmarking import scaling_model
from estimator_train.benchmarking.scaling_model import Observation


def secs(units, examples, fixed=0., per_example=1e-3, latency=0., transfer=0.):
  return (fixed + examples * per_example + 2 * (units - 1) * latency
          + 2 * (units - 1) / units * transfer)


def observations(counts, batch_sizes=(32, 64), noise=0., **terms):
  random = np.random.RandomState(1)
  return [Observation(units, examples, secs(units, examples, **terms) * random.normal(1, noise))
          for units in counts for examples in batch_sizes]


@pytest.mark.parametrize('terms', [
    {'fixed': .01}, {'fixed': .01, 'latency': 1e-3}, {'fixed': .01, 'transfer': .02},
    {'fixed': .005, 'latency': 1e-3, 'transfer': .02}], ids=str)
def test_the_terms_are_found(terms):
  model = scaling_model.fit(observations([1, 2, 4, 8], **terms))
  assert model.secs_per_example == pytest.approx(1e-3, rel=.05)
  assert model.fixed_secs == pytest.approx(terms['fixed'], rel=.2)
  assert model.noise == .01  # Measurements without any noise are not trusted.
  for units in (1, 8, 16):
    prediction = model.predict(units, 64)
    assert prediction.secs == pytest.approx(secs(units, 64, **terms), rel=.05)
    assert prediction.low < prediction.secs < prediction.high


def test_no_term_is_negative():
  # Faster with more units, as no term can explain.
  model = scaling_model.fit([Observation(units, 32, 1 / units) for units in (1, 2, 4)])
  assert (model.draws >= 0).all() and model.noise > .1


def test_one_number_of_units_predicts_nothing():
  assert scaling_model.fit(observations([2])) is None
  assert scaling_model.fit([]) is None


def test_latency_and_transfer_are_both_in_the_interval_of_two_numbers():
  model = scaling_model.fit(observations([1, 2], fixed=.01, transfer=.02))
  prediction = model.predict(64, 64)
  only_latency = secs(64, 64, fixed=.01, latency=.01)
  assert prediction.low < secs(64, 64, fixed=.01, transfer=.02) < prediction.high
  assert prediction.low < only_latency < prediction.high
  # With eight units, the measurements exclude latency.
  model = scaling_model.fit(observations([1, 2, 4, 8], fixed=.01, transfer=.02))
  assert model.predict(64, 64).high < only_latency


def test_the_interval_contains_most_new_measurements_and_grows():
  terms = {'fixed': .01, 'latency': 1e-4, 'transfer': .02}
  inside = []
  for seed in range(20):
    random = np.random.RandomState(seed)
    model = scaling_model.fit([
        Observation(units, examples, secs(units, examples, **terms) * random.normal(1, .03))
        for units in (1, 2, 4) for examples in (32, 64) for _ in range(3)])
    prediction = model.predict(8, 64)
    new = secs(8, 64, **terms) * random.normal(1, .03)
    inside.append(prediction.low <= new <= prediction.high)
    widths = [model.predict(units, 64).high / model.predict(units, 64).low
              for units in (4, 8, 16, 32)]
    assert widths == sorted(widths)
  assert sum(inside) >= 17
