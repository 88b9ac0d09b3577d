"""Measures the training of a canned Estimator with TimeHistory.

  python examples/canned_estimator.py MODEL_DIR [STEPS]

The report is in MODEL_DIR/throughput.json and MODEL_DIR/report/index.html. Another run, for example
on another machine, can be compared with it:

  python -m estimator_train --mode=report --runs=MODEL_DIR,OTHER_DIR --model_dir=OUTPUT_DIR
"""

import sys

import numpy as np
import tensorflow as tf

import estimator_train

BATCH_SIZE = 32


def make_input_fn(seed, examples, epochs):
  random = np.random.RandomState(seed)
  numbers = random.normal(size=(examples, 8)).astype(np.float32)
  classes = (numbers.sum(-1) > 0).astype(np.int32)
  return lambda: tf.data.Dataset.from_tensor_slices(({'numbers': numbers}, classes)).repeat(
      epochs).batch(BATCH_SIZE)


def main(model_dir, steps):
  estimator = tf.estimator.DNNClassifier(
      [64, 32], [tf.feature_column.numeric_column('numbers', shape=8)], model_dir=model_dir)
  time_history = estimator_train.TimeHistory(BATCH_SIZE, report_dir=model_dir)
  tf.estimator.train_and_evaluate(
      estimator,
      tf.estimator.TrainSpec(make_input_fn(1, 4000, None), steps, hooks=[time_history]),
      tf.estimator.EvalSpec(make_input_fn(2, 1000, 1), steps=None))
  report = time_history.report()
  print('{:,.0f} examples/sec, {}'.format(report['examples_per_sec'], report['verdict']))


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500)
