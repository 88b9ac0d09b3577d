"""`--mode=predict`: writes predictions for images, or for any examples, in the order of the input.
"""

import contextlib
import itertools
import logging
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.datasets import own
from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.exporting import trained_model
from estimator_train.inputs import factory, unlabelled
from estimator_train.process.progress_bar import make_progress_bar
from estimator_train.reports import predictions
from estimator_train.settings import Settings, groups, rules

# The columns of a CSV file, and batches of predictions.
_OpenPredictions = Tuple[Sequence[str], Iterator[List[Dict[str, Any]]]]
_LOG = logging.getLogger('estimator_train')


class Predictions(NamedTuple):
  """The predictions of the examples that `--input` names.

  Attributes:
    trained_checkpoint: the checkpoint of the model.
    columns: the columns of a CSV file of the predictions.
    batches: lists of dicts. A dict, made by reports.predictions, has the prediction of an example,
      or the error of a bad file.
  """
  trained_checkpoint: trained_model.TrainedCheckpoint
  columns: Sequence[str]
  batches: Iterator[List[Dict[str, Any]]]


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the number of examples predicted, and of bad files.

  Raises:
    UserError: a file is bad. All other files have been predicted, and the error contains the
      result of the mode.
  """
  predictions.check_output_path(settings.output)
  with open_predictions(settings) as (trained_checkpoint, columns, batches), \
      predictions.open_prediction_writer(settings.output, columns) as writer:
    for batch in _with_progress(batches, settings.log_every_steps):
      for prediction in batch:
        writer.write(prediction)
      writer.flush()
  result = {'mode': settings.mode, 'model_dir': settings.model_dir, 'output': settings.output,
            'predicted': writer.num_predicted, 'bad': writer.num_errors,
            'global_step': trained_checkpoint.global_step,
            'checkpoint': trained_checkpoint.checkpoint}
  if writer.first_error is not None:
    raise UserError('some files could not be predicted',
                    '{} bad file(s), the first is {!r} ({})'.format(
                        writer.num_errors, *writer.first_error),
                    'repair or remove the files with an `error` in the output', result)
  return result


@contextlib.contextmanager
def open_predictions(settings: Settings) -> Iterator[Predictions]:
  """Restores the model and finds the examples. Iterating over the batches predicts the examples.

  Raises:
    UserError: there are no examples, or no checkpoint of the model.
  """
  trained_checkpoint = trained_model.find_checkpoint(settings)
  has_images = trained_checkpoint.dataset.image_shape is not None
  with (_predict_images if has_images else _predict_examples)(
      settings, trained_checkpoint) as (columns, batches):
    yield Predictions(trained_checkpoint, columns, batches)


@contextlib.contextmanager
def _predict_images(settings: Settings,
                    trained: trained_model.TrainedCheckpoint) -> Iterator[_OpenPredictions]:
  """Predicts the images in the files that `--input` names."""
  dataset = trained.dataset
  files = unlabelled.find_input_files(rules.require_input(settings))
  with trained_model.load_predictor(settings, trained) as model:
    _log_model(settings, trained, model.device, model.batch_size)
    batches = unlabelled.read_batches(
        files, settings.image_key, dataset.require_images('--input'), model.batch_size,
        threads.num_parallel_calls(settings[groups.Input]))
    with contextlib.closing(batches):
      yield (predictions.class_columns('file', dataset.labels),
             (_predict_batch(batch, model.predict, dataset.labels) for batch in batches))


def _predict_batch(batch: List[unlabelled.Entry], predict: Callable[[np.ndarray], np.ndarray],
                   class_names: Sequence[str]) -> List[Dict[str, Any]]:
  """Returns a dict for each entry of a batch, in the order of the entries."""
  images = [entry for entry in batch if isinstance(entry, unlabelled.Image)]
  outputs = iter(predict(unlabelled.stack_images(images)) if images else ())
  return [predictions.make_error(predictions.file_source(entry.name), entry.reason)
          if isinstance(entry, unlabelled.UnreadableFile)
          else predictions.make_prediction(predictions.file_source(entry.name), next(outputs),
                                           class_names)
          for entry in batch]


@contextlib.contextmanager
def _predict_examples(settings: Settings,
                      trained: trained_model.TrainedCheckpoint) -> Iterator[_OpenPredictions]:
  """Predicts the examples that functions of the user make."""
  dataset = own.describe_examples_to_predict(settings)
  source = factory.make_source(
      dataset, factory.make_source(dataset, dataset.test).with_count(settings.model_dir))
  source.check_and_count()
  with trained_model.predict_examples(settings, trained, source) as model:
    _log_model(settings, trained, model.device, model.batch_size)
    identify = source.identify_example
    source_column = next(iter(identify(0)))
    columns = (predictions.class_columns(source_column, dataset.labels) if dataset.labels
               else predictions.output_columns(source_column, model.output_shapes))
    yield columns, _iter_example_predictions(model.batches, identify, dataset.labels)


def _iter_example_predictions(
    batches: Iterator[Dict[str, np.ndarray]], identify: Callable[[int], Dict[str, Any]],
    class_names: Sequence[str]) -> Iterator[List[Dict[str, Any]]]:
  """Yields a list of predictions for each batch of outputs."""
  indices = itertools.count()
  for batch in batches:
    rows = [dict(zip(batch, values)) for values in zip(*batch.values())]
    if class_names:
      yield [predictions.make_prediction(identify(index), outputs, class_names)
             for row, index in zip(rows, indices) for outputs in row.values()]
    else:
      yield [predictions.make_output_prediction(identify(index), row)
             for row, index in zip(rows, indices)]


def _log_model(settings: Settings, trained: trained_model.TrainedCheckpoint, device: str,
               batch_size: int) -> None:
  _LOG.info('predicting with %s of step %d on %s, %d %s at a time', settings.model,
            trained.global_step, device, batch_size,
            'examples' if trained.dataset.image_shape is None else 'images')


def _with_progress(batches: Iterator[List[Dict[str, Any]]],
                   log_every: int) -> Iterator[List[Dict[str, Any]]]:
  """Yields the batches, and shows a progress bar, or logs lines where no bar is shown."""
  began, count = time.perf_counter(), 0
  with logging_redirect_tqdm([_LOG]), make_progress_bar(desc='predicting', unit='image') as bar:
    for number, batch in enumerate(batches, 1):
      yield batch
      bar.update(len(batch))
      count += len(batch)
      if bar.disable and number % log_every == 0:
        _LOG.info('%d images, %.0f images/sec', count, count / (time.perf_counter() - began))
