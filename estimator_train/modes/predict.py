"""`--mode=predict`: tells the classes of images, in the order of the input, as they are read."""

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
  """Returns the result: how many images were predicted, and how many files are bad.

  Raises:
    UserError: a file is bad; it has the result, and everything else has been predicted.
  """
  assert settings.input is not None
  predictions.check_output(settings.output)
  files = unlabelled.find(settings.input)
  found = trained_model.find(settings)
  with trained_model.load(settings, found) as model:
    _LOG.info('%s of step %d on %s, %d images at a time', settings.model, found.global_step,
              model.device, model.batch_size)
    batches = unlabelled.batches(
        files, found.dataset.image_shape, model.batch_size,
        threads.num_parallel_calls(settings[groups.Input]))
    with predictions.write_to(settings.output, found.dataset.labels) as written, \
        contextlib.closing(batches):
      for batch in _with_progress(batches, settings.log_every_steps):
        _predict(batch, model.outputs, written)
  result = {'mode': settings.mode, 'model_dir': settings.model_dir, 'output': settings.output,
            'predicted': written.predicted, 'bad': written.bad,
            'global_step': found.global_step, 'checkpoint': found.checkpoint}
  if written.first_bad is not None:
    raise UserError('not everything could be predicted',
                    '{} bad file(s), the first is {!r} ({})'.format(
                        written.bad, *written.first_bad),
                    'mend or remove them; the output says `error` of each', result)
  return result


def _predict(batch: List[unlabelled.Example], outputs: Callable[[np.ndarray], np.ndarray],
             written: predictions.Predictions) -> None:
  """Writes the predictions of a batch."""
  images = [example for example in batch if isinstance(example, unlabelled.Image)]
  following = iter(outputs(unlabelled.stack(images)) if images else ())
  for example in batch:
    if isinstance(example, unlabelled.Bad):
      written.add_bad(*example)
    else:
      written.add(example.name, next(following))
  written.flush()


def _with_progress(batches: Iterator[List[unlabelled.Example]],
                   log_every: int) -> Iterator[List[unlabelled.Example]]:
  """Yields the batches, and shows how many examples there have been: a bar on a terminal."""
  began, count = time.perf_counter(), 0
  with logging_redirect_tqdm([_LOG]), tqdm(desc='predicting', unit='image', disable=None) as bar:
    for number, batch in enumerate(batches, 1):
      yield batch
      bar.update(len(batch))
      count += len(batch)
      if bar.disable and number % log_every == 0:
        _LOG.info('%d images, %.0f images/sec', count, count / (time.perf_counter() - began))
