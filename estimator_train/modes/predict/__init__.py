"""`--mode=predict`: writes predictions for images, or for any examples, as JSON lines or CSV.

The predictions are in the order of the input.
"""

import contextlib
import itertools
import logging
import sys
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import file_pattern
from estimator_train.data.opening import make_eval_input_fn, open_examples_to_predict
from estimator_train.distribution import devices
from estimator_train.errors import UserError, first_line
from estimator_train.exporting import restored_model
from estimator_train.exporting.restored_model import Predictor, RestoredModel, TrainedModel
from estimator_train.modes.predict import (
  images,
  in_memory,
  output_file,
  predictions,
  row_inputs,
  rows,
)
from estimator_train.modes.predict.images import ExampleOrError
from estimator_train.modes.predict.output_file import Column
from estimator_train.modes.predict.row_inputs import RowInput
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, rules
from estimator_train.settings.proposals import make_checkpoint_arguments, make_command
from estimator_train.system.formatting import format_count, format_quantity
from estimator_train.system.progress import make_bar, shows_progress_bars
from estimator_train.system.summary import log_summary

_LOG = logging.getLogger('estimator_train')


class Predictions(NamedTuple):
  """The predictions of the examples that `--input` names.

  Attributes:
    batches: yields lists of dicts. A dict is the prediction of an example, or has the error of a
      file or row.
  """
  trained_model: TrainedModel
  columns: Sequence[Column]
  batches: Iterator[List[Dict[str, Any]]]


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the numbers of predicted examples and of bad files.

  Raises:
    UserError: a file is bad. All other files have been predicted, and the error contains the
      result of the mode.
  """
  output_file.check_path(settings.export.output)
  with open_predictions(settings, run_dir) as (trained_model, columns, batches), \
      output_file.open_writer(settings.export.output, columns) as writer:
    noun = 'example' if trained_model.spec.image_shape is None else 'image'
    for batch in _with_progress(batches, settings, noun + 's'):
      for prediction in batch:
        writer.write(prediction)
      writer.flush()
  output = settings.export.output
  log_summary('predicted {} with the checkpoint of step {}'.format(
      format_count(writer.num_predicted, noun), trained_model.checkpoint.global_step), [
          ('bad', format_count(writer.num_errors, noun) if writer.num_errors else None),
          ('predictions', None if output == output_file.STANDARD_OUTPUT else output),
          ('checkpoint', trained_model.checkpoint.path)],
              make_command('--mode=export', '--model_dir=' + run_dir.path,
                           *make_checkpoint_arguments(settings.checkpoints.checkpoint))
              if writer.num_predicted else None)
  result = {'mode': settings.run.mode, 'model_dir': settings.run.model_dir,
            'output': output, 'predicted': writer.num_predicted,
            'bad': writer.num_errors, 'global_step': trained_model.checkpoint.global_step,
            'checkpoint': trained_model.checkpoint.path}
  if writer.first_error is not None:
    raise UserError('some inputs could not be predicted',
                    '{}, the first is {!r} ({})'.format(
                        format_count(writer.num_errors, 'bad input'), *writer.first_error),
                    'repair or remove the inputs with an `error` in the output', result)
  return result


@contextlib.contextmanager
def open_predictions(settings: Settings, run_dir: RunDir,
                     values: Any = None) -> Iterator[Predictions]:
  """Restores the model, and finds the examples, which are predicted by iterating over `batches`.

  Args:
    values: examples in memory, or a list of paths, in place of `--input`.
  """
  patterns = in_memory.find_patterns(values)
  if patterns is None and values is None:
    patterns = file_pattern.split_patterns(settings.export.input or '')
  with contextlib.ExitStack() as stack:
    trained_model = stack.enter_context(restored_model.open_trained_model(settings, run_dir))
    if trained_model.spec.image_shape is not None:
      yield _predict_images(settings, trained_model, patterns, values, stack)
    else:
      files = rows.find_row_files(patterns or ())
      yield (_predict_rows(trained_model, files, values, stack) if files or patterns is None
             else _predict_examples(settings, run_dir, trained_model, stack))


def _predict_images(settings: Settings, trained_model: TrainedModel,
                    patterns: Optional[Sequence[str]], values: Any,
                    stack: contextlib.ExitStack) -> Predictions:
  """Predicts the images in files or, without patterns, in memory lazily."""
  rules.INPUT_RULE.check(settings.export)
  files = images.find_files(patterns or ())
  shape = trained_model.spec.require_images('--input')
  if shape[2] not in (1, 3):
    raise UserError('images must have one channel or three',
                    '--image_size={},{},{}'.format(*shape),
                    'give the --model_dir of a model that was trained on such images')
  images_in_memory = None if patterns is not None else stack.enter_context(
      contextlib.closing(in_memory.read_images(values, shape)))

  def add_pixels(model: RestoredModel, _: int) -> restored_model.InputsAndOutputs:
    pixels = tf.placeholder(tf.float32, [None, *shape[:2], None])
    outputs = model.make_outputs(model.preprocess(pixels))
    return [pixels], restored_model.add_size_checks(outputs, pixels)

  predictor = stack.enter_context(trained_model.open_predictor(add_pixels))
  if images_in_memory is not None:
    batches = _split_into_batches(images_in_memory, predictor.batch_size)
  else:
    batches = stack.enter_context(contextlib.closing(images.read_batches(
        files, settings.data.image_key, shape, predictor.batch_size,
        devices.num_parallel_calls(settings.input))))
  return _predict_batches(batches, trained_model, predictor)


def _predict_rows(trained_model: TrainedModel, files: List[bytes], values: Any,
                  stack: contextlib.ExitStack) -> Predictions:
  """Predicts the rows of CSV and JSON Lines files or, without files, in memory lazily."""
  row_inputs_by_name: Dict[str, RowInput] = {}

  def add_values(model: RestoredModel, _: int) -> restored_model.InputsAndOutputs:
    row_inputs_by_name.update(row_inputs.make_row_inputs(model.keras_model, model.inputs))
    placeholders = [placeholder for row_input in row_inputs_by_name.values()
                    for placeholder in row_input.placeholders()]
    return placeholders, restored_model.add_size_checks(model.outputs, model.inputs)

  predictor = stack.enter_context(trained_model.open_predictor(add_values))
  examples = (example for path in files for example in rows.read_rows(path, row_inputs_by_name)
              ) if files else in_memory.read_rows(values, row_inputs_by_name)
  return _predict_batches(
      _split_into_batches(examples, predictor.batch_size), trained_model, predictor._replace(
          predict=lambda *arrays: predictor.predict(
              *row_inputs.make_feed_values(list(row_inputs_by_name.values()), arrays))))


def _split_into_batches(examples: Iterator[ExampleOrError],
                        batch_size: int) -> Iterator[List[ExampleOrError]]:
  return iter(lambda: list(itertools.islice(examples, batch_size)), [])


def _predict_batches(batches: Iterator[List[ExampleOrError]], trained_model: TrainedModel,
                     predictor: Predictor) -> Predictions:
  class_names = trained_model.spec.labels
  columns = predictions.make_columns('file', class_names, predictor.output_shapes)
  return Predictions(trained_model, columns, (
      predict_batch(batch, predictor.predict, class_names) for batch in batches))


def predict_batch(batch: List[ExampleOrError], predict: Callable[..., Dict[str, np.ndarray]],
                  class_names: Sequence[str]) -> List[Dict[str, Any]]:
  """Returns a prediction or an error for each example, in the order of the examples.

  Examples whose arrays have the same shapes are predicted together.

  Args:
    predict: takes a batch of each input, and returns the outputs by name.
  """
  predictions_by_position: Dict[int, Dict[str, Any]] = {}
  positions_by_shapes: Dict[Any, List[int]] = {}
  for position, example in enumerate(batch):
    if isinstance(example.arrays_or_error, str):
      # If an idx file cannot be read further, one error replaces all its remaining predictions.
      predictions_by_position[position] = dict(
          predictions.identify_input(example.name), error=example.arrays_or_error)
    else:
      shapes = tuple(array.shape for array in example.arrays_or_error)
      positions_by_shapes.setdefault(shapes, []).append(position)
  for positions in positions_by_shapes.values():
    predictions_by_position.update(zip(positions, _predict_same_shapes(
        [batch[position] for position in positions], predict, class_names)))
  return [predictions_by_position[position] for position in range(len(batch))]


def _predict_same_shapes(examples: List[ExampleOrError],
                         predict: Callable[..., Dict[str, np.ndarray]],
                         class_names: Sequence[str]) -> List[Dict[str, Any]]:
  """Returns a prediction for each example, or an error if the model cannot process it."""
  identities = [predictions.identify_input(example.name) for example in examples]
  try:
    outputs = predict(*map(np.stack, zip(*(example.arrays_or_error for example in examples))))
  except tf.errors.InvalidArgumentError as error:  # For example, an index outside of an embedding.
    if len(examples) == 1:
      return [dict(identities[0], error='the model cannot process it: ' + first_line(error))]
    middle = len(examples) // 2
    return [prediction for half in (examples[:middle], examples[middle:])
            for prediction in _predict_same_shapes(half, predict, class_names)]
  return _make_predictions(outputs, identities, class_names)


def _predict_examples(settings: Settings, run_dir: RunDir, trained_model: TrainedModel,
                      stack: contextlib.ExitStack) -> Predictions:
  """Predicts the examples of a function of the user lazily, until the stack is closed."""
  source = open_examples_to_predict(settings, run_dir)

  def add_examples(model: RestoredModel, batch_size: int) -> restored_model.InputsAndOutputs:
    with tf.device('/cpu:0'):
      iterator = tf.data.make_initializable_iterator(
          make_eval_input_fn(source, settings, False, batch_size)())
      features, _ = iterator.get_next()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return [], restored_model.add_size_checks(model.make_outputs(features), features)

  predictor = stack.enter_context(trained_model.open_predictor(add_examples, source))
  class_names = source.spec.labels

  def iter_batches() -> Iterator[List[Dict[str, Any]]]:
    identities = map(source.identify_example, itertools.count())
    with contextlib.suppress(tf.errors.OutOfRangeError):
      while True:
        yield _make_predictions(predictor.predict(), identities, class_names)

  columns = predictions.make_columns(
      next(iter(source.identify_example(0))), class_names, predictor.output_shapes)
  return Predictions(trained_model, columns, iter_batches())


def _make_predictions(outputs: Dict[str, np.ndarray], identities: Iterable[Dict[str, Any]],
                      class_names: Sequence[str]) -> List[Dict[str, Any]]:
  """Returns the predictions for the examples of a batch.

  Args:
    outputs: a batch of each output, by name.
  """
  outputs_of_examples = [dict(zip(outputs, values)) for values in zip(*outputs.values())]
  if class_names:
    return [predictions.make_class_prediction(identity, class_outputs, class_names)
            for example_outputs, identity in zip(outputs_of_examples, identities)
            for class_outputs in example_outputs.values()]
  return [predictions.make_output_prediction(identity, example_outputs)
          for example_outputs, identity in zip(outputs_of_examples, identities)]


def _with_progress(batches: Iterator[List[Dict[str, Any]]], settings: Settings, unit: str,
                   ) -> Iterator[List[Dict[str, Any]]]:
  """Yields the batches, and shows a progress bar, or logs the progress if no bar can be shown.

  Without `--output`, the predictions themselves are the progress on a terminal.
  """
  start_time, num_predicted = time.perf_counter(), 0
  prints_predictions = settings.export.output == output_file.STANDARD_OUTPUT and sys.stdout.isatty()
  with make_bar('predicting', None, unit,
                is_shown=shows_progress_bars() and not prints_predictions) as bar:
    for number, batch in enumerate(batches, 1):
      yield batch
      bar.update(len(batch))
      num_predicted += len(batch)
      if not (bar.is_shown or prints_predictions) and (
          number % settings.reporting.log_every_steps == 0):
        _LOG.info('%s, %s/sec', format_quantity(num_predicted, unit), format_quantity(
            num_predicted / (time.perf_counter() - start_time), unit))
