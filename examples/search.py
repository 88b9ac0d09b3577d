"""A search for good values of three flags, with Optuna. In a clone:

    $(scripts/install_search) examples/search.py --trials=20 --model_dir=runs/search

Each trial trains with other values of learning_rate, batch_size and label_smoothing. The trials are
stored in runs/search/study.db, and the same command adds further trials. In the end, the page
runs/search/comparison/report/index.html compares the best trials.

The trials are judged by the accuracy on the test examples. A search therefore makes this accuracy
optimistic. For your own data, judge them by other examples, such as those of validation_fraction,
and evaluate only the best trial on the test examples.
"""

import argparse
import os

import optuna

import estimator_train

NUM_COMPARED = 5


def train(trial, model_dir, epochs):
  """Trains with the values that Optuna suggests, and returns the accuracy."""
  result = estimator_train.train(estimator_train.Settings(
      model_dir=os.path.join(model_dir, 'trial-{}'.format(trial.number)),
      dataset='fashion_mnist_sample', model='fashion_cnn', train_epochs=epochs,
      learning_rate=trial.suggest_float('learning_rate', 1e-4, 1e-2, log=True),
      batch_size=trial.suggest_categorical('batch_size', [32, 64, 128]),
      label_smoothing=trial.suggest_float('label_smoothing', 0, .2)))
  return result['accuracy']


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--trials', type=int, default=20)
  parser.add_argument('--epochs', type=int, default=5)
  parser.add_argument('--model_dir', default='runs/search')
  arguments = parser.parse_args()

  os.makedirs(arguments.model_dir, exist_ok=True)
  study = optuna.create_study(
      storage='sqlite:///{}/study.db'.format(arguments.model_dir), study_name='search',
      direction='maximize', load_if_exists=True)
  # A trial whose loss is not finite fails, and the search continues.
  study.optimize(lambda trial: train(trial, arguments.model_dir, arguments.epochs),
                 arguments.trials, catch=estimator_train.TrainingFailed)

  complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
  best = sorted(complete, key=lambda trial: -trial.value)[:NUM_COMPARED]
  for trial in best:
    print('trial {}: accuracy {:.4f}, {}'.format(trial.number, trial.value, trial.params))
  if len(best) > 1:
    result = estimator_train.report(
        model_dir=os.path.join(arguments.model_dir, 'comparison'),
        runs=[os.path.join(arguments.model_dir, 'trial-{}'.format(trial.number))
              for trial in best])
    print('comparison: {}'.format(result['page']))


if __name__ == '__main__':
  main()
