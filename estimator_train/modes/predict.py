"""`--mode=predict`: predicts the classes of images, in the order of the input."""

import contextlib
import logging
import time
from typing import Any, Callable, Dict, Iterator, List

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


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the number of images predicted, and of bad files.

  Raises:
    UserError: a file is bad. All other files have been predicted, and the error contains the
      result of the mode.
  """
  assert settings.input is not None
  predictions.check_output_path(settings.output)
  files = unlabelled.find_input_files(settings.input)
  trained = trained_model.find_checkpoint(settings)
  with trained_model.load_predictor(settings, trained) as model:
    _LOG.info('predicting with %s of step %d on %s, %d images at a time', settings.model,
              trained.global_step, model.device, model.batch_size)
    batches = unlabelled.read_batches(
        files, trained.dataset.image_shape, model.batch_size,
        threads.num_parallel_calls(settings[groups.Input]))
    with predictions.open_prediction_writer(settings.output, trained.dataset.labels) as writer, \
        contextlib.closing(batches):
      for batch in _with_progress(batches, settings.log_every_steps):
        _predict_batch(batch, model.predict, writer)
  result = {'mode': settings.mode, 'model_dir': settings.model_dir, 'output': settings.output,
            'predicted': writer.num_predicted, 'bad': writer.num_errors,
            'global_step': trained.global_step, 'checkpoint': trained.checkpoint}
  if writer.first_error is not None:
    raise UserError('some files could not be predicted',
                    '{} bad file(s), the first is {!r} ({})'.format(
                        writer.num_errors, *writer.first_error),
                    'repair or remove the files with an `error` in the output', result)
  return result


def _predict_batch(batch: List[unlabelled.Entry], outputs: Callable[[np.ndarray], np.ndarray],
                   writer: predictions.PredictionWriter) -> None:
  """Predicts a batch and writes the predictions."""
  images = [example for example in batch if isinstance(example, unlabelled.Image)]
  image_outputs = iter(outputs(unlabelled.stack_images(images)) if images else ())
  for example in batch:
    if isinstance(example, unlabelled.UnreadableFile):
      writer.write_error(*example)
    else:
      writer.write_prediction(example.name, next(image_outputs))
  writer.flush()


def _with_progress(batches: Iterator[List[unlabelled.Entry]],
                   log_every: int) -> Iterator[List[unlabelled.Entry]]:
  """Yields the batches and shows progress: a bar on a terminal, else log lines."""
  began, count = time.perf_counter(), 0
  with logging_redirect_tqdm([_LOG]), tqdm(desc='predicting', unit='image', disable=None) as bar:
    for number, batch in enumerate(batches, 1):
      yield batch
      bar.update(len(batch))
      count += len(batch)
      if bar.disable and number % log_every == 0:
        _LOG.info('%d images, %.0f images/sec', count, count / (time.perf_counter() - began))
