"""Measures the training of a canned Estimator with TimeHistory, and compares two runs. In a clone:

    ./run_train.sh --help
    .venv/bin/python examples/canned_estimator.py runs/canned
    .venv/bin/python examples/canned_estimator.py runs/canned_again
    ./run_train.sh --mode=report --runs=runs/canned,runs/canned_again --model_dir=runs/comparison

The first command makes the environment .venv. The report of a run is in runs/canned/throughput.json
and runs/canned/report/index.html, the comparison in runs/comparison/report/index.html.
"""

import argparse

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
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('model_dir')
  parser.add_argument('steps', type=int, nargs='?', default=500)
  main(**vars(parser.parse_args()))
