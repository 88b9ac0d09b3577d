"""Predicts throughput with more replicas or workers from a model of the time of a step.

With N replicas or workers that each process b examples, a step takes

    fixed + b * per_example + 2 (N - 1) * latency + 2 (N - 1) / N * transfer

The first two terms are the computation. The others are a ring all-reduce, which has 2 (N - 1)
messages one after another, and transfers 2 (N - 1) / N times the size of the gradients per replica.
No term is negative.

The interval of a prediction contains 90 % of many predictions, each of which is fitted to the
measurements with random noise. The noise has the size of the deviations from the model. If the
measurements do not show whether the time of an all-reduce is latency or transfer, the interval
contains the predictions of both. Beyond the largest measured number of units, the interval grows
further, because the model knows nothing of slower connections that only larger numbers use.
"""

import itertools
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_INTERVAL_PERCENTILES = (5, 95)
_NUM_DRAWS = 200
# Repeated measurements differ by more than this fraction, even if the given ones do not.
_MIN_NOISE = .01
# A model without one of the terms is as good if its deviation is larger by less than this fraction.
_DEVIATION_TOLERANCE = .02
# Standard deviation of the relative error for each doubling of the largest measured number. With
# this value, the intervals contain about 90 % of the figures in tests/benchmarks/scaling_model.py.
_ERROR_PER_DOUBLING = .05
_FIXED, _PER_EXAMPLE, _LATENCY, _TRANSFER = range(4)
_NUM_TERMS = 4


class Observation(NamedTuple):
  """A measured time.

  Attributes:
    units: number of replicas or workers.
    examples: number of examples that each of them processes in a step.
    secs: seconds per step, without the time of waiting for input.
  """
  units: int
  examples: float
  secs: float


class Prediction(NamedTuple):
  """Predicted seconds per step, and the bounds of the 90 % interval."""
  secs: float
  low: float
  high: float


class ScalingModel(NamedTuple):
  """A fitted model.

  Attributes:
    fixed_secs, secs_per_example, latency_secs, transfer_secs: the median of each term.
    noise: relative deviation of the measurements from the model.
    max_units: largest number of units in the measurements.
    draws: the terms of each fit to the measurements with noise, with shape [fits, 4].
  """
  fixed_secs: float
  secs_per_example: float
  latency_secs: float
  transfer_secs: float
  noise: float
  max_units: int
  draws: np.ndarray

  def predict(self, units: int, examples: float) -> Prediction:
    """Predicts the time of a step; see Observation for the arguments."""
    secs = self.draws.dot(_features(units, examples))
    error = self.noise + _ERROR_PER_DOUBLING * max(np.log2(units / self.max_units), 0.)
    noise = np.exp(np.random.RandomState(0).normal(0., error, len(secs)))
    low, high = np.percentile(secs * noise, _INTERVAL_PERCENTILES)
    return Prediction(float(np.median(secs)), float(low), float(high))


def fit(observations: Sequence[Observation]) -> Optional[ScalingModel]:
  """Fits the model; returns None if all observations have the same number of units."""
  units = {observation.units for observation in observations}
  if len(units) < 2:
    return None
  features = np.array([_features(observation.units, observation.examples)
                       for observation in observations])
  secs = np.array([observation.secs for observation in observations])
  fits = [_fit_terms(features, secs, terms)
          for terms in _alternative_terms(len(units), observations)]
  smallest = min(deviation for _, deviation in fits)
  kept = [fit for fit in fits if fit[1] <= smallest + _DEVIATION_TOLERANCE]
  noise = max(smallest, _MIN_NOISE)
  draws = np.concatenate([terms for terms, _ in kept])
  fixed, per_example, latency, transfer = np.median(draws, axis=0)
  return ScalingModel(float(fixed), float(per_example), float(latency), float(transfer), noise,
                      max(units), draws)


def _features(units: int, examples: float) -> np.ndarray:
  """Returns the factors of the terms."""
  return np.array([1., examples, 2. * (units - 1), 2. * (units - 1) / units])


def _alternative_terms(num_counts: int,
                       observations: Sequence[Observation]) -> List[Tuple[int, ...]]:
  """Returns the sets of terms that the measurements may be able to distinguish."""
  has_batch_sizes = len({observation.examples for observation in observations}) > 1
  computation = (_FIXED, _PER_EXAMPLE) if has_batch_sizes else (_PER_EXAMPLE,)
  all_reduces: List[Tuple[int, ...]] = [(_LATENCY,), (_TRANSFER,)]
  if num_counts > 2:
    all_reduces.append((_LATENCY, _TRANSFER))
  return [computation + all_reduce for all_reduce in all_reduces]


def _fit_terms(features: np.ndarray, secs: np.ndarray,
               terms: Tuple[int, ...]) -> Tuple[np.ndarray, float]:
  """Fits some of the terms to the measurements, and to the measurements with noise.

  Returns:
    The fitted terms with noise, with shape [fits, 4], and the relative deviation of the
    measurements from the model.
  """
  relative = features / secs[:, np.newaxis]  # All measurements then have the same weight.
  fitted, deviations = _fit_non_negative(relative, np.ones([len(secs), 1]), terms)
  noise = max(deviations[0], _MIN_NOISE)
  noisy = np.random.RandomState(0).normal(1., noise, [len(secs), _NUM_DRAWS])
  draws, _ = _fit_non_negative(relative, noisy, terms)
  return np.concatenate([fitted, draws]), float(deviations[0])


def _fit_non_negative(features: np.ndarray, targets: np.ndarray,
                      terms: Tuple[int, ...]) -> Tuple[np.ndarray, np.ndarray]:
  """Solves non-negative least squares for several targets, by trying all subsets of the terms.

  Args:
    features: the factors of all terms, with shape [measurements, 4].
    targets: with shape [measurements, targets].
    terms: the terms that may be greater than zero.

  Returns:
    The terms for each target, with shape [targets, 4], and the deviation for each target.
  """
  num_targets = targets.shape[1]
  best = np.zeros([num_targets, _NUM_TERMS])
  smallest = np.full(num_targets, np.inf)
  for size in range(1, len(terms) + 1):
    for subset in itertools.combinations(terms, size):
      columns = features[:, subset]
      solution = np.linalg.lstsq(columns, targets, rcond=None)[0]
      squares = np.sum((columns.dot(solution) - targets) ** 2, axis=0)
      is_better = (solution >= 0).all(axis=0) & (squares < smallest)
      smallest[is_better] = squares[is_better]
      best[is_better] = 0
      best[np.ix_(is_better, subset)] = solution[:, is_better].T
  return best, np.sqrt(smallest / max(len(targets) - len(terms), 1))
