"""A plain Estimator with Horovod, in the manner of Horovod's own examples, as a baseline.

  python tests/benchmarks/horovod_estimator.py --model=dense_80mb --train_steps=40 \
    --warmup_steps=10 --batch_size=128

Run by engines.py under the variables of horovodrun. Trains on one synthetic batch, which is
repeated. Rank 0 prints the number of examples that all ranks have used per second, as JSON.
"""

import json
import os
import time
from typing import Any, Dict

import common
import horovod.tensorflow as hvd
import tensorflow.compat.v1 as tf
from large_gradients import MODELS


class Timer(tf.train.SessionRunHook):
  """Measures the time from the end of the warm-up to the end of the last step."""

  def __init__(self, warmup_steps: int) -> None:
    self._warmup_steps, self._num_steps = warmup_steps, 0
    self._started_at = self._ended_at = 0.

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._num_steps += 1
    self._ended_at = time.perf_counter()
    if self._num_steps == self._warmup_steps:
      self._started_at = self._ended_at

  @property
  def steps_per_sec(self) -> float:
    return (self._num_steps - self._warmup_steps) / (self._ended_at - self._started_at)


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str,
             params: Dict[str, Any]) -> tf.estimator.EstimatorSpec:
  model = MODELS[params['model']]((28, 28, 1), 10)
  outputs = model(tf.cast(features, tf.float32) / 255.)
  loss = tf.reduce_mean(tf.keras.losses.categorical_crossentropy(labels, outputs))
  optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(.001))
  return tf.estimator.EstimatorSpec(
      mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()))


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('--model', required=True, choices=sorted(MODELS))
  for name in ('train_steps', 'warmup_steps', 'batch_size'):
    parser.add_count('--' + name, 10, name)
  args = parser.parse_args()
  tf.logging.set_verbosity(tf.logging.ERROR)
  hvd.init()
  os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[hvd.rank()]])

  def input_fn() -> tf.data.Dataset:
    images = tf.cast(tf.random.stateless_uniform(
        (args.batch_size, 28, 28, 1), [1, 0], 0, 256, tf.int32), tf.uint8)
    class_indices = tf.random.stateless_uniform([args.batch_size], [1, 1], 0, 10, tf.int64)
    return tf.data.Dataset.from_tensors((images, tf.one_hot(class_indices, 10))).repeat()

  timer = Timer(args.warmup_steps)
  estimator = tf.estimator.Estimator(
      model_fn, config=tf.estimator.RunConfig(
          tf_random_seed=1, save_checkpoints_steps=None, save_checkpoints_secs=None,
          log_step_count_steps=None, save_summary_steps=0),
      params={'model': args.model})
  estimator.train(input_fn, hooks=[hvd.BroadcastGlobalVariablesHook(0), timer],
                  max_steps=args.train_steps)
  if hvd.rank() == 0:
    print(json.dumps({'images_per_sec': timer.steps_per_sec * args.batch_size * hvd.size()}))


if __name__ == '__main__':
  main()
