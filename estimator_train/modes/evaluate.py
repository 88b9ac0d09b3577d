"""`--mode=evaluate`: evaluates a checkpoint.

The files of the run change only if its latest checkpoint is evaluated on the test examples of the
run. Any other evaluation is written to a separate folder, `MODEL_DIR/evaluations/NAME/`.
"""

import contextlib
import filecmp
import hashlib
import logging
import os
import re
from typing import Any, Dict, Optional

from estimator_train.checkpoints import best_checkpoint, finding
from estimator_train.checkpoints.pinned_files import ReadableCheckpoint
from estimator_train.data import file_pattern
from estimator_train.reports import evaluation, learning_curves, page, report_files
from estimator_train.run_dir import RunDir, data_record
from estimator_train.settings import Settings, to_texts
from estimator_train.settings.proposals import make_predict_command
from estimator_train.system.formatting import format_count
from estimator_train.system.summary import log_summary
from estimator_train.training.evaluation import Evaluator
from estimator_train.training.preparation import build_model, convert_model
from estimator_train.training.run import Run, open_run

_LOG = logging.getLogger('estimator_train')
_EVALUATIONS_FOLDER = 'evaluations'
_DATA_FLAGS = ('dataset', 'data_dir', 'train_pattern', 'eval_pattern', 'validation_fraction',
               'image_key', 'label_key', 'label_offset', 'on_bad_image')
_PREPROCESSING_FLAGS = ('model', 'image_size', 'preprocess')
_MAX_NAME_LENGTH = 40


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the metrics of the checkpoint on the test examples."""
  if settings.export.input is not None:
    _LOG.warning('--input has no effect in --mode=evaluate; to evaluate on other examples, give '
                 '--dataset or --eval_pattern')
  with finding.pin_requested_checkpoint(settings, run_dir) as checkpoint:
    run = open_run(settings, run_dir, checkpoint_to_evaluate=checkpoint)
    # If `model_dir` has no run, this evaluation is compared with the first one in the folder.
    earlier_evaluation = report_files.read_or_warn(run_dir.path, 'evaluation')
    other_checkpoint = _describe_other_checkpoint(run, checkpoint, earlier_evaluation)
    differing_flags = run_dir.flag_differences(settings, _PREPROCESSING_FLAGS)
    other_preprocessing = (
        'other preprocessing: ' + ', '.join(differing_flags) if differing_flags else None)
    differences = list(filter(None, [
        _describe_other_examples(run, earlier_evaluation), other_checkpoint, other_preprocessing]))
    output_dir = run_dir
    if differences:
      output_dir = RunDir(run_dir.path_to(_EVALUATIONS_FOLDER, _make_folder_name(
          run, other_preprocessing, other_checkpoint is not None)))
      _LOG.info('not the evaluation of the run (%s): writing to %s', ', '.join(differences),
                output_dir.path)
    evaluator = Evaluator(run, convert_model(run, build_model(run)))
    metrics, samples = evaluator.evaluate(checkpoint.readable_path)
  metrics['checkpoint'] = checkpoint.path
  output_dir.make()
  evaluator.write_summary(output_dir.path_to('eval') if differences else None)
  if differences:
    output_dir.record_flags(settings)
    output_dir.record_class_names(run.data.spec.labels)
    metrics['differs_from_run'] = differences
  result = evaluation.write_evaluation_report(
      settings.run, run.data.spec.labels, metrics, samples, output_dir)
  result.update(run.skipped_images_result)
  if differences:
    result.update(evaluation_dir=output_dir.path, differs_from_run=differences)
  else:
    learning_curves.write_learning_curves(output_dir.path)
  page_file = page.write_page_of_finished_run(output_dir.path, settings.reporting)
  best, requested = best_checkpoint.read_best(run_dir.path), settings.checkpoints.checkpoint
  log_summary('evaluated the checkpoint of step {}'.format(result['global_step']), [
      ('skipped', format_count(len(run.data.skipped_images), 'bad image')
       if run.data.skipped_images else None),
      ('report', page_file),
      ('evaluation', report_files.path_to(output_dir.path, 'evaluation')),
      ('checkpoint', checkpoint.path)],
              make_predict_command(
                  run_dir.path, run.data.spec.image_shape is not None,
                  'best' if requested == 'latest' and best is not None
                  and best.global_step != checkpoint.global_step else requested))
  return result


def _describe_other_examples(run: Run, earlier_evaluation: Dict[str, Any]) -> Optional[str]:
  """Describes how the test examples differ from those of the run; None if they do not."""
  assert run.data.test is not None
  settings, run_dir = run.settings, run.run_dir
  differing_flags = ', '.join(run_dir.flag_differences(settings, _DATA_FLAGS))
  texts = to_texts(settings)
  given_flags = ' '.join('--{}={}'.format(name, texts[name] or '') for name in _DATA_FLAGS
                         if name in settings.given.all_names
                         and run_dir.flag_differences(settings, [name]))
  record = data_record.read(run_dir)
  digest_of_run = (record and record.test_examples) or earlier_evaluation.get('examples_digest')
  # Earlier versions recorded only the flags of a run.
  is_same = (run.data.test.content_digest() == digest_of_run if digest_of_run
             else not (earlier_evaluation and differing_flags))
  return None if is_same else 'other test examples: ' + (
      given_flags or differing_flags or 'the files have changed')


def _describe_other_checkpoint(run: Run, checkpoint: ReadableCheckpoint,
                               earlier_evaluation: Dict[str, Any]) -> Optional[str]:
  """Describes the evaluated checkpoint if it is not the latest one of the run, else None."""
  if run.settings.checkpoints.checkpoint == 'latest':
    return None
  latest = finding.find_latest_checkpoint(run.run_dir.path) or earlier_evaluation.get('checkpoint')
  if latest is None or latest == checkpoint.path:
    return None
  # Equal index files mean equal checkpoints, because they contain checksums of the values.
  with contextlib.suppress(OSError):  # A training process may delete the latest checkpoint.
    if filecmp.cmp(latest + '.index', checkpoint.readable_path + '.index', shallow=False):
      return None
  return 'another checkpoint: {}, not {}'.format(checkpoint.path, latest)


def _make_folder_name(run: Run, other_preprocessing: Optional[str],
                      has_other_checkpoint: bool) -> str:
  """Returns a name that depends on the examples, the preprocessing and the checkpoint."""
  data, checkpoint = run.settings.data, run.start.checkpoint
  assert run.data.test is not None and checkpoint is not None
  name, pattern = '', data.train_pattern if data.validation_fraction else data.eval_pattern
  if pattern:
    folder = file_pattern.folder_before_wildcards(file_pattern.split_patterns(pattern)[0])
    name = os.path.basename(os.path.abspath(folder))
  name = re.sub(r'[^\w.-]+', '_', name or data.dataset)[-_MAX_NAME_LENGTH:].lstrip('.')
  digest = hashlib.md5('{} {}'.format(
      run.data.test.content_digest(), other_preprocessing).encode())
  if has_other_checkpoint:
    with open(checkpoint + '.index', 'rb') as file:
      digest.update(file.read())
  return '{}-{}{}'.format(name, digest.hexdigest()[:8], '-step-{}'.format(
      run.start.step) if has_other_checkpoint else '')
