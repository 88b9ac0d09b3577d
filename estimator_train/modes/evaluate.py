"""`--mode=evaluate`: evaluates a checkpoint.

The files of the run change only if its latest checkpoint is evaluated on its own test examples.
Any other evaluation is written to a folder of its own, `MODEL_DIR/evaluations/NAME/`.
"""

import contextlib
import filecmp
import hashlib
import logging
import os
import re
from typing import Any, Dict, Optional

from estimator_train.checkpoints import finding
from estimator_train.checkpoints.pinned_files import SavedCheckpoint
from estimator_train.data import file_pattern
from estimator_train.reports import evaluation, learning_curves, page, report_files
from estimator_train.run_dir import RunDir, data_record
from estimator_train.settings import Settings
from estimator_train.training.evaluation import Evaluator
from estimator_train.training.preparation import build, convert_model
from estimator_train.training.run import Run, open_run

_LOG = logging.getLogger('estimator_train')
_EVALUATIONS_FOLDER = 'evaluations'
_DATA_FLAGS = ('dataset', 'data_dir', 'train_pattern', 'eval_pattern', 'validation_fraction',
               'image_key', 'label_key', 'label_offset', 'on_bad_image')
_PREPROCESSING_FLAGS = ('model', 'image_size', 'preprocess')
_MAX_NAME_LENGTH = 40


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result, which has the metrics of the checkpoint on the test examples."""
  with finding.pin_requested_checkpoint(settings, run_dir) as checkpoint:
    run = open_run(settings, run_dir, checkpoint=checkpoint)
    # What differs from the run in `model_dir`; without one, from the first evaluation in it.
    before = report_files.read_or_warn(run_dir.path, 'evaluation')
    other_checkpoint = _other_checkpoint(run, checkpoint, before)
    flags = run_dir.flag_differences(settings, _PREPROCESSING_FLAGS)
    preprocessing = 'other preprocessing: ' + ', '.join(flags) if flags else None
    texts = list(filter(None, [_other_examples(run, before), other_checkpoint, preprocessing]))
    record = RunDir(run_dir.path_to(_EVALUATIONS_FOLDER, _make_name(
        run, preprocessing, other_checkpoint is not None))) if texts else run_dir
    if texts:
      _LOG.info('not the evaluation of the run (%s): writing to %s', ', '.join(texts), record.path)
    evaluator = Evaluator(run, convert_model(run, build(run)))
    metrics, samples = evaluator.evaluate(checkpoint.readable_path)
  metrics['checkpoint'] = checkpoint.path
  record.make()
  evaluator.write_summary(record.path_to('eval') if texts else None)
  if texts:
    record.record_flags(settings, run.data.spec.labels)
    metrics['differs_from_run'] = texts
  result = evaluation.write_evaluation_report(
      settings.run, run.data.spec.labels, metrics, samples, record)
  result.update(run.skipped_images_result)
  if texts:
    result.update(evaluation_dir=record.path, differs_from_run=texts)
  else:
    learning_curves.write_learning_curves(record.path)
  page.write_page_of_finished_run(record.path, settings.reporting)
  return result


def _other_examples(run: Run, before: Dict[str, Any]) -> Optional[str]:
  """Returns what differs between the test examples and those of the run; None: nothing."""
  assert run.data.test is not None
  flags = ', '.join(run.run_dir.flag_differences(run.settings, _DATA_FLAGS))
  record = data_record.read(run.run_dir)
  own = (record and record.test_examples) or before.get('examples_digest')
  # A run of an earlier version has recorded only its flags.
  is_own = own == run.data.test.content_digest() if own else not (before and flags)
  return None if is_own else 'other test examples: ' + (flags or 'the files have changed')


def _other_checkpoint(run: Run, checkpoint: SavedCheckpoint,
                      before: Dict[str, Any]) -> Optional[str]:
  """Returns which checkpoint is evaluated instead of the latest one; None: that one."""
  if run.settings.checkpoints.checkpoint == 'latest':
    return None
  own = finding.latest_checkpoint(run.run_dir.path) or before.get('checkpoint')
  if own is None or own == checkpoint.path:
    return None
  # The index of a checkpoint has the checksums of its values. A training may delete the latest one.
  with contextlib.suppress(OSError):
    if filecmp.cmp(own + '.index', checkpoint.readable_path + '.index', shallow=False):
      return None
  return 'another checkpoint: {}, not {}'.format(checkpoint.path, own)


def _make_name(run: Run, preprocessing: Optional[str], has_other_checkpoint: bool) -> str:
  """Returns the name of the folder of an evaluation, by its examples and its checkpoint."""
  data, checkpoint = run.settings.data, run.start.checkpoint
  assert run.data.test is not None and checkpoint is not None
  name, pattern = '', data.train_pattern if data.validation_fraction else data.eval_pattern
  if pattern:
    folder = file_pattern.fixed_folder(file_pattern.split_patterns(pattern)[0])
    name = os.path.basename(os.path.abspath(folder))
  name = re.sub(r'[^\w.-]+', '_', name or data.dataset)[-_MAX_NAME_LENGTH:].lstrip('.')
  digest = hashlib.md5('{} {}'.format(run.data.test.content_digest(), preprocessing).encode())
  if has_other_checkpoint:
    with open(checkpoint + '.index', 'rb') as file:
      digest.update(file.read())
  return '{}-{}{}'.format(name, digest.hexdigest()[:8], '-step-{}'.format(
      run.start.step) if has_other_checkpoint else '')
