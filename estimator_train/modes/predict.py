"""`--mode=predict`: predicts the classes of images, in the order of the input."""

import contextlib
import logging
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.exporting import trained_model
from estimator_train.inputs import unlabelled
from estimator_train.reports import predictions
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')


class Predictions(NamedTuple):
  """The predictions of the images that `--input` names.

  Attributes:
    trained_checkpoint: the checkpoint of the model.
    batches: lists of dicts. A dict, made by reports.predictions, has the prediction of an image, or
      the error of a bad file.
  """
  trained_checkpoint: trained_model.TrainedCheckpoint
  batches: Iterator[List[Dict[str, Any]]]


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the number of images predicted, and of bad files.

  Raises:
    UserError: a file is bad. All other files have been predicted, and the error contains the
      result of the mode.
  """
  predictions.check_output_path(settings.output)
  with open_predictions(settings) as (trained_checkpoint, batches), \
      predictions.open_prediction_writer(
          settings.output, trained_checkpoint.dataset.labels) as writer:
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
  """Restores the model and finds the images. Iterating over the batches predicts the images.

  Raises:
    UserError: there are no images, or no checkpoint of the model.
  """
  assert settings.input is not None
  files = unlabelled.find_input_files(settings.input)
  trained_checkpoint = trained_model.find_checkpoint(settings)
  with trained_model.load_predictor(settings, trained_checkpoint) as model:
    _LOG.info('predicting with %s of step %d on %s, %d images at a time', settings.model,
              trained_checkpoint.global_step, model.device, model.batch_size)
    batches = unlabelled.read_batches(
        files, settings.image_key, trained_checkpoint.dataset.image_shape, model.batch_size,
        threads.num_parallel_calls(settings[groups.Input]))
    with contextlib.closing(batches):
      yield Predictions(trained_checkpoint, (
          _predict_batch(batch, model.predict, trained_checkpoint.dataset.labels)
          for batch in batches))


def _predict_batch(batch: List[unlabelled.Entry], predict: Callable[[np.ndarray], np.ndarray],
                   class_names: Sequence[str]) -> List[Dict[str, Any]]:
  """Returns a dict for each entry of a batch, in the order of the entries."""
  images = [entry for entry in batch if isinstance(entry, unlabelled.Image)]
  outputs = iter(predict(unlabelled.stack_images(images)) if images else ())
  return [predictions.make_error(*entry) if isinstance(entry, unlabelled.UnreadableFile)
          else predictions.make_prediction(entry.name, next(outputs), class_names)
          for entry in batch]


def _with_progress(batches: Iterator[List[Dict[str, Any]]],
                   log_every: int) -> Iterator[List[Dict[str, Any]]]:
  """Yields the batches, and shows a progress bar on a terminal, or else logs progress lines."""
  began, count = time.perf_counter(), 0
  with logging_redirect_tqdm([_LOG]), tqdm(desc='predicting', unit='image', disable=None) as bar:
    for number, batch in enumerate(batches, 1):
      yield batch
      bar.update(len(batch))
      count += len(batch)
      if bar.disable and number % log_every == 0:
        _LOG.info('%d images, %.0f images/sec', count, count / (time.perf_counter() - began))
