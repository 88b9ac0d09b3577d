"""Predicts the points of a scaling sweep with more replicas or workers than were measured."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from estimator_train.benchmarking import scaling_model, sweep
from estimator_train.benchmarking.scaling_model import Observation, ScalingModel
from estimator_train.benchmarking.sweep import PointResult
from estimator_train.settings import Settings, groups

_NUM_DOUBLINGS = 5
# From this fraction of the time on, waiting for input is more than an occasional delay.
_INPUT_BOUND_SHARE = .05


def predict(settings: Settings, results: Sequence[PointResult]) -> Optional[Dict[str, Any]]:
  """Returns the value of `predictions` in `scaling.json`.

  Args:
    settings: settings of the sweep.
    results: results of all points.

  Returns:
    None if nothing can be predicted: the replicas are logical CPU devices, which share the same
    cores, or fewer than two numbers of units were measured.
  """
  if results[0].point.unit == sweep.CPU:
    return None
  models: List[Dict[str, Any]] = []
  rows: List[Dict[str, Any]] = []
  validation: List[Dict[str, Any]] = []
  for input_name in (sweep.REAL, sweep.SYNTHETIC):
    measured = [result for result in results
                if result.figures is not None and result.point.input == input_name]
    fitted = _Fit.make(settings, measured)
    if fitted is None:
      continue
    models.append({'input': input_name, **fitted.describe()})
    rows += fitted.predict_more(input_name)
    validation += _validate(settings, measured, input_name)
  if not models:
    return None
  return {'interval': .9, 'models': models, 'table': rows, 'validation': validation}


class _Fit:
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
  def make(cls, settings: Settings, results: Sequence[PointResult]) -> Optional['_Fit']:
    """Fits the model to results; returns None if all have the same number of units."""
    observations, input_rates = [], []
    for result in results:
      assert result.figures is not None
      rate = result.figures['steady_examples_per_sec']
      share = (result.figures.get('shares') or {}).get('input') or 0.
      batch_size = sweep.global_batch_size(result.point, settings[groups.Optimizer])
      units = result.point.count
      observations.append(Observation(units, batch_size / units, batch_size / rate * (1 - share)))
      if share > _INPUT_BOUND_SHARE:
        # Each worker has an input pipeline, and all replicas of a process use the same one.
        input_rates.append(rate / units if result.point.unit == sweep.WORKER else rate)
    model = scaling_model.fit(observations)
    return model and cls(settings, model, max(input_rates, default=None))

  def describe(self) -> Dict[str, Any]:
    """Returns the terms of the model."""
    model = self._model
    return {'fixed_secs': model.fixed_secs, 'secs_per_example': model.secs_per_example,
            'latency_secs': model.latency_secs, 'transfer_secs': model.transfer_secs,
            'deviation': model.noise, 'input_examples_per_sec': self._input_rate}

  def predict_more(self, input_name: str) -> Iterator[Dict[str, Any]]:
    """Yields predictions for the measured numbers of units, and for larger ones."""
    counts = sweep.unit_counts(self._model.max_units) + [
        self._model.max_units * 2 ** doubling for doubling in range(1, _NUM_DOUBLINGS + 1)]
    for scaling in (sweep.WEAK, sweep.STRONG):
      rate_of_one_unit = self.predict(scaling, 1)[0]
      for count in counts:
        if scaling == sweep.WEAK or count <= self._settings.batch_size:
          rate, low, high = self.predict(scaling, count)
          yield {'scaling': scaling, 'input': input_name, self._settings.scale_over: count,
                 'global_batch_size': self._batch_size(scaling, count), 'examples_per_sec': rate,
                 'low': low, 'high': high, 'efficiency': rate / rate_of_one_unit / count}

  def predict(self, scaling: str, count: int) -> Tuple[float, float, float]:
    """Returns the predicted examples/sec, and the bounds of its interval."""
    batch_size = self._batch_size(scaling, count)
    prediction = self._model.predict(count, batch_size / count)
    rate, low, high = (self._limit_rate(batch_size / secs, count) for secs in (
        prediction.secs, prediction.high, prediction.low))
    return rate, low, high

  def _batch_size(self, scaling: str, count: int) -> int:
    return self._settings.batch_size * (count if scaling == sweep.WEAK else 1)

  def _limit_rate(self, rate: float, count: int) -> float:
    """Returns a rate that the input pipelines can sustain."""
    if self._input_rate is None:
      return rate
    num_pipelines = count if self._settings.scale_over == 'workers' else 1
    return min(rate, self._input_rate * num_pipelines)


def _validate(settings: Settings, results: Sequence[PointResult],
              input_name: str) -> List[Dict[str, Any]]:
  """Predicts the points with the most units from the others, and returns the errors."""
  most = max(result.point.count for result in results)
  fitted = _Fit.make(settings, [result for result in results if result.point.count < most])
  if fitted is None:
    return []
  rows = []
  for scaling in (sweep.WEAK, sweep.STRONG):
    rates = sorted(result.figures['steady_examples_per_sec'] for result in results
                   if result.figures and result.point.count == most
                   and result.point.scaling == scaling)
    if rates:
      measured = rates[len(rates) // 2]
      rate, low, high = fitted.predict(scaling, most)
      rows.append({'scaling': scaling, 'input': input_name, settings.scale_over: most,
                   'measured': measured, 'predicted': rate, 'low': low, 'high': high,
                   'error': rate / measured - 1})
  return rows
