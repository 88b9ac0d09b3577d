"""Checks, reads and writes the JSON files that the report page shows.

Other versions of the package may have written the files, so each field may be missing or null. The
page can show every file that passes its check. To verify this, the tests change each value of each
file.
"""

import os
from typing import Any, Dict, Mapping

from estimator_train.reports import REPORT_FOLDER
from estimator_train.system import storage
from estimator_train.system.json_values import (
  Check,
  boolean,
  fields,
  integer,
  list_of,
  mapping,
  number,
  optional,
  text,
  tuple_of,
)

_MAX_SECS = 1e10  # Three hundred years.
_MAX_COUNT = 2 ** 40
_RATE, _SECS, _COUNT = number(0, 1e30), number(0, _MAX_SECS), integer(0, _MAX_COUNT)
# Fractions of a duration may be less than 0 or greater than 1 due to rounding, others may not.
_SHARE, _FRACTION = number(-1, 2), number(0, 1)


def _optional(checks: Mapping[str, Check]) -> Dict[str, Check]:
  """Returns checks that also accept null."""
  return {name: optional(check) for name, check in checks.items()}


def _each(check: Check, *names: str) -> Dict[str, Check]:
  """Returns the check for each name. It also accepts null."""
  return _optional(dict.fromkeys(names, check))


THROUGHPUT_FIELDS = {
    # In a TimeHistory, the replicas may have batches of different sizes. `per_replica_batch_size`,
    # their mean size, may then be a fraction.
    **_each(_RATE, 'examples_per_sec', 'examples_per_sec_per_replica', 'steady_examples_per_sec',
            'steps_per_sec', 'steady_steps_per_sec', 'per_replica_batch_size'),
    **_each(_SECS, 'run_secs', 'total_run_secs', 'standard_error_secs', 'wall_secs',
            'time_to_first_step_secs'),
    **_each(_COUNT, 'steps_timed', 'warmup_steps', 'start_step', 'global_step',
            'global_batch_size', 'num_replicas', 'num_workers'),
    **_each(text, 'model', 'dataset', 'finished_at', 'machine', 'distribution_strategy', 'verdict',
            'tensorflow_version', 'python_version', 'package_version'),
    **_each(mapping(optional(number(-_MAX_SECS, _MAX_SECS))), 'step_secs', 'steady_step_secs',
            'session_run_secs', 'between_secs', 'input_wait_secs'),
    **_optional({
        'drift': number(), 'steady_state': boolean, 'devices': list_of(text),
        'first_step_parts_secs': mapping(number(-_MAX_SECS, _MAX_SECS)),
        'shares': mapping(optional(_SHARE)),
        'skipped_images': fields({'count': _COUNT, 'files': list_of(text)}),
        'parameters': fields(dict.fromkeys(('total', 'trainable', 'frozen', 'bytes'), integer())),
        'pauses': mapping(fields({'count': _COUNT, 'secs': _SECS})),
        'outliers': list_of(fields({'global_step': _COUNT, 'secs': _SECS}))})}


def _check_matrix(value: Any) -> Any:
  if len(set(map(len, list_of(list_of(_COUNT))(value)))) > 1:
    raise ValueError('rows of different lengths')
  return value


_EVALUATION = fields({}, {
    # Without classes, a metric of the model can have any of these names.
    **_each(number(), 'accuracy', 'top_5_accuracy', 'macro_precision', 'macro_recall', 'macro_f1',
            'calibration_error', 'roc_auc', 'average_precision', 'average_loss', 'loss',
            'regularization_loss'),
    **_each(_COUNT, 'examples', 'global_step'),
    **_optional({'confusion_matrix': _check_matrix, 'checkpoint': text, 'examples_digest': text,
                 'differs_from_run': list_of(text), 'confusions': list_of(fields({
                     'label': text, 'predicted': text, 'examples': _COUNT})),
                 'calibration_bins': list_of(fields({'examples': _COUNT}, _optional({
                     'confidence': number(), 'accuracy': _FRACTION}))),
                 'threshold_curve': list_of(fields({
                     'recall': _FRACTION, 'false_positive_rate': _FRACTION}, _each(
                         _FRACTION, 'threshold', 'precision'))),
                 'per_class': mapping(fields({'support': _COUNT}, _each(
                     _FRACTION, 'precision', 'recall', 'f1')))})})


def _check_scaling(value: Any) -> Any:
  """Checks scaling.json. In a row, the number of units has the value of `scale_over` as its key."""
  sweep = dict(fields({}, {
      **_each(text, 'scale_over', 'device_kind', 'note'),
      'cores_per_worker': optional(_COUNT), 'table': list_of(_SCALING_ROW)})(value))
  sweep['scale_over'] = 'workers' if sweep.get('scale_over') == 'workers' else 'replicas'
  for row in sweep.get('table', []):
    integer(1, _MAX_COUNT)(row.get(sweep['scale_over']))
    if row.get('examples_per_sec') is not None:
      fields({'examples_per_sec': number(1e-9, 1e30), 'min': _RATE, 'max': _RATE})(row)
  return sweep


_SCALING_ROW = fields({'scaling': text, 'input': text}, {
    **_each(_RATE, 'examples_per_sec', 'min', 'max', 'speed_up', 'efficiency'),
    **_each(_COUNT, 'runs', 'failed'), **_optional({'input_share': _SHARE, 'error': text})})


def _check_steps(value: Any) -> Any:
  """Checks report/steps.json, and that the lengths of its lists match."""
  steps = fields({}, {
      'global_step': list_of(_COUNT),
      **dict.fromkeys(('mean_secs', 'max_secs'), list_of(number(1e-12, _MAX_SECS))),
      'histogram': fields({'edges_secs': list_of(_SECS), 'counts': list_of(_COUNT)})})(value)
  if len({len(steps.get(name, [])) for name in ('global_step', 'mean_secs', 'max_secs')}) > 1:
    raise ValueError('lists of different lengths')
  histogram = steps.get('histogram')
  if histogram and histogram['counts'] and (
      len(histogram['edges_secs']) != len(histogram['counts']) + 1
      or histogram['edges_secs'] != sorted(histogram['edges_secs'])):
    raise ValueError('histogram: not an edge more than counts, in ascending order')
  return steps


def _check_outputs(value: Any) -> Any:
  """Checks report/outputs.json, and that the lengths of its lists match."""
  values = list_of(optional(number(-1e60, 1e60)))
  outputs = mapping(fields({'examples': _COUNT, 'true': values, 'predicted': values}))(value)
  if any(len(output['true']) != len(output['predicted']) for output in outputs.values()):
    raise ValueError('lists of different lengths')
  return outputs


_SAMPLES = list_of(fields({'label': text, 'predicted': text}, _optional(
    {'probability': number(0, 1.001),  # The sum of float32 outputs is about 1.
     'image': text, 'file': text, 'example': _COUNT})))
# The check of each file, by the name of the file without its extension.
CHECKS: Dict[str, Check] = {
    'throughput': fields({}, THROUGHPUT_FIELDS),
    'evaluation': _EVALUATION,
    'input_benchmark': fields({}, {
        **_each(_RATE, 'cold_images_per_sec', 'warm_images_per_sec', 'model_images_per_sec'),
        **_each(text, 'verdict', 'advice')}),
    'scaling': _check_scaling,
    'lr_finder': fields({}, {
        **_each(number(1e-60, 1e60), 'learning_rate', 'min_loss_rate'),
        **_each(text, 'model', 'dataset'),
        'points': list_of(fields({'learning_rate': number(1e-60, 1e60), 'loss': number(),
                                  'smoothed_loss': number()}))}),
    'ledger': fields({}, {'workload': optional(text), 'rows': list_of(mapping(optional(text)))}),
    'steps': _check_steps,
    'curves': mapping(list_of(tuple_of(integer(), optional(number())))),
    'samples': fields({}, {'samples': _SAMPLES, 'mistakes': _SAMPLES}),
    'outputs': _check_outputs}
# The copy of throughput.json and evaluation.json of a part of a workload.
WORKLOAD_PART = fields({
    'throughput': fields({
        'num_replicas': _COUNT, 'devices': list_of(text), 'per_replica_batch_size': _RATE,
        'global_step': _COUNT}, THROUGHPUT_FIELDS),
    'evaluation': _EVALUATION})
_FILES_IN_REPORT_FOLDER = ('steps', 'curves', 'samples', 'outputs')


def path_to(folder: str, name: str) -> str:
  """Returns the path of a report, whose name is a key of CHECKS, in the `model_dir` of a run."""
  return os.path.join(folder, *[REPORT_FOLDER] * (name in _FILES_IN_REPORT_FOLDER), name + '.json')


def write(folder: str, name: str, content: Dict[str, Any]) -> None:
  """Writes a report, and makes its folder if it is missing."""
  path = path_to(folder, name)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  storage.write_json(path, content)


def read_or_warn(folder: str, name: str, consequence: str = 'it is made again') -> Dict[str, Any]:
  """Reads a report; returns {} if the file is missing or damaged, and logs damage.

  Args:
    name: a key of CHECKS.
    consequence: the consequence of damage, for the log.
  """
  content: Dict[str, Any] = storage.load_json_or_warn(
      path_to(folder, name), CHECKS[name], consequence) or {}
  return content
