"""Makes up what a run leaves for its page, with names that would break a careless page."""

import json
import types

import numpy as np

from estimator_train.reports import evaluation

# Markup, formulas, what only some fonts and no UTF-8 has, and what is too long for any table.
HOSTILE = ('<script>alert(1)</script>', '"\'><img src=x onerror=alert(1)>', '$\\frac_1$ and \\$x',
           'new\nline', '😀', '视网膜', '{{ 7 * 7 }}', 'name_of_' * 25, '&amp;',
           'no \udcff text', '')


def example():
  """Returns the contents of all JSON files by their paths, each part of them filled."""
  matrix = np.diag([9] * (len(HOSTILE) - 1) + [0])  # There are no examples of the last class.
  matrix[7, 6:8] = 1, 3
  return {
      'throughput.json': _throughput(),
      'evaluation.json': {
          'accuracy': 0.847, 'average_loss': 0.4427, 'examples': 1000, 'global_step': 469,
          'checkpoint': 'model.ckpt-469', 'confusion_matrix': matrix.tolist(),
          'top_5_accuracy': 0.9875, 'macro_f1': 0.8413, 'calibration_error': 0.0625,
          'per_class': {label: dict(metrics, of_a_later_release=1) for label, metrics in
                        evaluation.per_class_metrics(HOSTILE, matrix.tolist()).items()}},
      'input_benchmark.json': {
          'cold_images_per_sec': 1355.4, 'warm_images_per_sec': 72985.,
          'model_images_per_sec': 2614., 'verdict': 'compute-bound',
          'advice': 'nothing in the input <helps>'},
      'report/steps.json': {
          'global_step': [12, 14, 16, 18], 'mean_secs': [0.05, 0.052, 0.051, 0.07],
          'max_secs': [0.06, 0.055, 0.9, 0.08],
          'histogram': {'edges_secs': [0.04, 0.05, 0.06, 0.1], 'counts': [1, 6, 1]}},
      'report/curves.json': {
          'train_loss': [[1, 2.3], [100, 0.8], [469, 0.5]],
          'train_accuracy': [[1, 0.1], [469, 0.83]],
          'eval_loss': [[469, 0.4427]], 'eval_accuracy': []},
      'report/outputs.json': {'<price>': {'examples': 1234, 'true': [1., 2., 3., None],
                                          'predicted': [1., 2., 4., 9.]}},
      'scaling.json': {
          'device_kind': 'cpu (logical)', 'note': 'a note & more', 'failures': [],
          'table': [_scaling_row(scaling, kind, replicas) for scaling in ('weak', 'strong')
                    for kind in ('real', 'synthetic') for replicas in (1, 2, 4)]},
      'lr_finder.json': {
          'learning_rate': 1e-5, 'min_loss_rate': 1e-3, 'points': [
              {'learning_rate': rate, 'loss': loss, 'smoothed_loss': loss}
              for rate, loss in ((1e-7, 2.), (1e-5, 1.9), (1e-3, .5), (.1, 1e30))]},
      'ledger.json': {'workload': 'the article <b>', 'rows': [
          {'what': 'accuracy', 'published': '0.883', 'published_conditions': '4 GPUs',
           'measured': '0.879', 'conditions': '2 cores', 'ratio': '0.995', 'why': None},
          {'what': 'time', 'published': '47 s', 'why': 'no GPU & no time'}]},
  }


def _throughput():
  spread = {'mean': 0.052, 'p50': 0.0511, 'p90': 0.06, 'p99': 0.0712, 'max': 0.9}
  return {
      'examples_per_sec': 2300., 'examples_per_sec_per_replica': 1150.,
      'steady_examples_per_sec': 2461.5, 'steps_per_sec': 18.0, 'run_secs': 3723.4,
      'finished_at': '2026-11-26T15:04:54+00:00', 'machine': 'A processor (2 cores)',
      'parameters': {'total': 1234567, 'trainable': 1000000, 'frozen': 234000, 'bytes': 4938268},
      'step_secs': spread, 'session_run_secs': spread,
      'between_secs': dict.fromkeys(spread, 1.3e-4), 'steady_step_secs': spread,
      'input_wait_secs': dict.fromkeys(spread, 0.004), 'standard_error_secs': 0.00052,
      'drift': -0.021, 'outliers': [{'global_step': 16, 'secs': 0.9}],
      'pauses': {'checkpoint': {'count': 2, 'secs': 1.5}}, 'wall_secs': 24., 'steps_timed': 459,
      'warmup_steps': 10, 'steady_state': True, 'time_to_first_step_secs': 4.4,
      'first_step_parts_secs': {'import': 2.2, 'data': 0.1, 'model': 0.4, 'graph': 0.8,
                                'session': 0.3, 'first_batch': 0.2, 'first_step': 0.4},
      'shares': {'input': 0.08, 'compute': 0.9, 'between': 0.02}, 'verdict': 'compute-bound',
      'global_step': 469, 'global_batch_size': 128, 'per_replica_batch_size': 64,
      'num_replicas': 2, 'num_workers': 1, 'dataset': '<i>set</i>', 'model': 'mine:a_$model$',
      'distribution_strategy': 'mirrored', 'devices': ['/cpu:0', '/cpu:1'],
      'tensorflow_version': '1.15.0'}


def _scaling_row(scaling, kind, replicas):
  row = {'scaling': scaling, 'input': kind, 'replicas': replicas, 'runs': 3}
  if (scaling, kind, replicas) == ('strong', 'real', 4):
    return dict(row, failed=3, examples_per_sec=None, error='exit code 2: <no> batch')
  rate = 1000. * replicas ** 0.5
  return dict(row, examples_per_sec=rate, min=rate - 50, max=rate + 80, input_share=0.05,
              speed_up=replicas ** 0.5, efficiency=replicas ** -0.5)


def _sample(true, predicted, probability, pixel):
  outputs = np.full(len(HOSTILE), (1 - probability) / (len(HOSTILE) - 1))
  outputs[predicted] = probability
  return types.SimpleNamespace(image=np.broadcast_to(pixel, (28, 20, len(pixel))),
                               class_index=true, outputs=outputs)


def write(model_dir, contents=None):
  """Writes the files of a run into a folder (a Path), all of them unless others are given."""
  (model_dir / 'report').mkdir(parents=True, exist_ok=True)
  for name, content in (example() if contents is None else contents).items():
    (model_dir / name).write_text(json.dumps(content))
  (model_dir / 'flags.txt').write_text(
      '--mode=train\n--train_pattern=<b>/*.jpeg & "more"=x\n--optimizer=adam\n'
      '# --labels is not set\n')
  if contents is None:
    evaluation.write_samples(
        str(model_dir), HOSTILE, [_sample(true, 0, .875, [77.]) for true in range(len(HOSTILE))],
        [_sample(8, 6, .625, [10., 20., 300.])])
