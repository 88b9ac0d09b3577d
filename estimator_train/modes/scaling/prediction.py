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
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.modes.scaling import points
from estimator_train.modes.scaling.points import PointResult
from estimator_train.settings import Settings

_INTERVAL_PERCENTILES = (5, 95)
_NUM_DRAWS = 200
# Repeated measurements differ by more than this fraction, even if the given ones do not.
_MIN_NOISE = .01
# A model without one of the terms is as good if its deviation is larger by less than this fraction.
_DEVIATION_TOLERANCE = .02
# Standard deviation of the relative error for each doubling of the largest measured number. With
# this value, the intervals contain about 90 % of the figures in tests/benchmarks/scaling_model.py.
_ERROR_PER_DOUBLING = .05
_TERMS = _FIXED, _PER_EXAMPLE, _LATENCY, _TRANSFER = range(4)
_NUM_DOUBLINGS = 5
# From this fraction of the time on, waiting for input is more than an occasional delay.
_INPUT_BOUND_SHARE = .05


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
    draws: the terms of each fit to the measurements with noise, with shape [fits, 4].
    noise: relative deviation of the measurements from the model.
    max_units: largest number of units in the measurements.
  """
  draws: np.ndarray
  noise: float
  max_units: int

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
  has_batch_sizes = len({observation.examples for observation in observations}) > 1
  computation = (_FIXED, _PER_EXAMPLE) if has_batch_sizes else (_PER_EXAMPLE,)
  # The sets of terms that the measurements may be able to distinguish.
  all_reduces: List[Tuple[int, ...]] = [(_LATENCY,), (_TRANSFER,)]
  if len(units) > 2:
    all_reduces.append((_LATENCY, _TRANSFER))
  fits = [_fit_terms(features, secs, computation + all_reduce) for all_reduce in all_reduces]
  smallest = min(deviation for _, deviation in fits)
  draws = np.concatenate([terms for terms, deviation in fits
                          if deviation <= smallest + _DEVIATION_TOLERANCE])
  return ScalingModel(draws, max(smallest, _MIN_NOISE), max(units))


def _features(units: int, examples: float) -> np.ndarray:
  """Returns the factors of the terms."""
  return np.array([1., examples, 2. * (units - 1), 2. * (units - 1) / units])


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
  best = np.zeros([num_targets, len(_TERMS)])
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


class _SweepModel:
  """A model of the sweep with one kind of input.

  Args:
    settings: settings of the sweep.
    model: the fitted model of the time of a step, without the time of waiting for input.
    input_rate: examples/sec of an input pipeline that makes steps wait; None: no step waits for
      long.
  """

  def __init__(self, settings: Settings, model: ScalingModel, input_rate: Optional[float]) -> None:
    self._settings, self._model, self._input_rate = settings, model, input_rate

  @classmethod
  def fit(cls, settings: Settings, results: Sequence[PointResult]) -> Optional['_SweepModel']:
    """Fits the model to results; returns None if all have the same number of units."""
    observations, input_rates = [], []
    for result in results:
      assert result.figures is not None
      rate = result.figures['steady_examples_per_sec']
      share = (result.figures.get('shares') or {}).get('input') or 0.
      batch_size = result.point.global_batch_size(settings.optimizer.batch_size)
      units = result.point.count
      observations.append(Observation(units, batch_size / units, batch_size / rate * (1 - share)))
      if share > _INPUT_BOUND_SHARE:
        # Each worker has an input pipeline, and all replicas of a process use the same one.
        input_rates.append(rate / units if result.point.unit == points.WORKER else rate)
    model = fit(observations)
    return model and cls(settings, model, max(input_rates, default=None))

  def describe(self) -> Dict[str, Any]:
    """Returns the medians of the terms of the model."""
    names = ('fixed_secs', 'secs_per_example', 'latency_secs', 'transfer_secs')
    return {**dict(zip(names, np.median(self._model.draws, axis=0).tolist())),
            'deviation': self._model.noise, 'input_examples_per_sec': self._input_rate}

  def predict(self, scaling: str, count: int) -> Dict[str, Any]:
    """Returns the predicted figures of a number of units; `low` and `high` are the interval."""
    batch_size = self._settings.optimizer.batch_size * (count if scaling == points.WEAK else 1)
    secs, fastest, slowest = self._model.predict(count, batch_size / count)
    num_pipelines = count if self._settings.experiments.scale_over == 'workers' else 1
    limit = np.inf if self._input_rate is None else self._input_rate * num_pipelines
    return {self._settings.experiments.scale_over: count, 'global_batch_size': batch_size,
            'examples_per_sec': min(batch_size / secs, limit),
            'low': min(batch_size / slowest, limit), 'high': min(batch_size / fastest, limit)}

  def predict_more(self, scaling: str) -> Iterator[Dict[str, Any]]:
    """Yields predictions for the measured numbers of units, and for larger ones."""
    max_units = self._model.max_units
    counts = points.unit_counts(max_units) + [
        max_units * 2 ** doubling for doubling in range(1, _NUM_DOUBLINGS + 1)]
    rate_of_one_unit = self.predict(scaling, 1)['examples_per_sec']
    for count in counts:
      if scaling == points.WEAK or count <= self._settings.optimizer.batch_size:
        row = self.predict(scaling, count)
        yield {**row, 'efficiency': row['examples_per_sec'] / rate_of_one_unit / count}


def predict(settings: Settings, results: Sequence[PointResult]) -> Optional[Dict[str, Any]]:
  """Returns the value of `predictions` in `scaling.json`.

  Args:
    settings: settings of the sweep.
    results: results of all points.

  Returns:
    None if nothing can be predicted: the replicas are logical CPU devices, which share the same
    cores, or fewer than two numbers of units were measured.
  """
  if results[0].point.unit == points.CPU:
    return None
  models: List[Dict[str, Any]] = []
  rows: List[Dict[str, Any]] = []
  validation: List[Dict[str, Any]] = []
  for input_name in (points.REAL, points.SYNTHETIC):
    measured = [result for result in results
                if result.figures is not None and result.point.input == input_name]
    fitted = _SweepModel.fit(settings, measured)
    if fitted is None:
      continue
    models.append({'input': input_name, **fitted.describe()})
    for scaling in (points.WEAK, points.STRONG):
      key = {'scaling': scaling, 'input': input_name}
      rows += [{**key, **row} for row in fitted.predict_more(scaling)]
      validation += [{**key, **row} for row in _validate(settings, measured, scaling)]
  if not models:
    return None
  return {'interval': .9, 'models': models, 'table': rows, 'validation': validation}


def _validate(settings: Settings, results: Sequence[PointResult],
              scaling: str) -> Iterator[Dict[str, Any]]:
  """Predicts the point with the most units from the others, and yields the error if possible."""
  most = max(result.point.count for result in results)
  fitted = _SweepModel.fit(settings, [result for result in results if result.point.count < most])
  rates = sorted(result.figures['steady_examples_per_sec'] for result in results
                 if result.figures and result.point.count == most
                 and result.point.scaling == scaling)
  if fitted is not None and rates:
    measured, predicted = rates[len(rates) // 2], fitted.predict(scaling, most)
    yield {settings.experiments.scale_over: most, 'measured': measured,
           'predicted': predicted['examples_per_sec'], 'low': predicted['low'],
           'high': predicted['high'], 'error': predicted['examples_per_sec'] / measured - 1}
