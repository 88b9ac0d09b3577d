"""`--mode=train_and_evaluate`, and `--mode=train`, which does not evaluate.

The function `run` shows the steps of a run in their order. In a cluster, each process calls it, and
performs one role: the chief and the other workers train, an evaluator evaluates the checkpoints
that the chief saves, and a parameter server stores variables.

Until the model has been built, a run writes only its lock, caches, downloads and, with Horovod, the
address of rank 0.
"""

import functools
from typing import Any, Dict, Optional

from estimator_train.checkpoints import finding, repairing
from estimator_train.checkpoints.pinned_files import ReadableCheckpoint
from estimator_train.distribution.engines import serve_variables
from estimator_train.distribution.peers import READY
from estimator_train.distribution.process import (
  EVALUATOR,
  PARAMETER_SERVER,
  SINGLE_PROCESS,
  Process,
)
from estimator_train.exporting import export as exports, h5_model
from estimator_train.exporting.restored_model import TrainedModel
from estimator_train.reports import evaluation, learning_curves, page, throughput
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.proposals import make_predict_command
from estimator_train.system.progress import show_phase
from estimator_train.system.signals import SignalState
from estimator_train.training import preparation
from estimator_train.training.evaluation import EvaluationLoop, warn_of_inaccurate_batch_norm
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.run import Run, open_run
from estimator_train.training.trainer import Outcome, raise_if_stopped, train


def run(settings: Settings, run_dir: RunDir, process: Process = SINGLE_PROCESS) -> Dict[str, Any]:
  """Performs the role of this process in the run, and returns the result of the mode."""
  if process.role == PARAMETER_SERVER:
    return serve_variables(settings, process)
  signals = SignalState()
  run = open_run(settings, run_dir, process)  # Writes only caches and downloads.
  built_model = preparation.build_model(run)
  if run.engine.num_workers > 1:
    # Wait for the other processes. A worker then waits until the chief announces READY.
    run.peers.join_run(preparation.collect_shared_values(run, built_model.keras_model))
    run.start_up.end_phase('peers')
  if process.is_chief:
    repairing.repair_model_dir(run_dir.path, run.start.checkpoint)
  model = preparation.convert_model(run, built_model)  # In a new run, writes the initial weights.
  run.peers.announce_state(READY)
  if process.is_chief:
    preparation.write_run_files(run)
  evaluation_loop = _make_evaluation_loop(run, model, signals)
  if process.role == EVALUATOR:
    assert evaluation_loop is not None
    result = evaluation_loop.evaluate_new_checkpoints(run.end_step)
    h5_model.save_best_model(_describe_last_model(run), None)
    return result
  if not process.is_chief:
    return _train_as_worker(run, model, signals)
  exports.make_export_dir(settings.export)  # Reports an unusable folder before the training.
  # In this block, a signal ends the training after the running step, but does not interrupt the
  # reports.
  with signals:
    outcome = train(run, model, signals, evaluation_loop)
    result = _write_throughput_report(run, model, outcome)
    trained_model, best_model_file = _describe_last_model(run), None
    result['checkpoint'] = trained_model.checkpoint.path
    model_file = h5_model.save_model(trained_model)
    if evaluation_loop and signals.stop_signum is None and not outcome.stopped_by_signal:
      # A value of the training takes precedence over a metric of the same name.
      result = {**evaluation_loop.evaluate(), **result}
      warn_of_inaccurate_batch_norm(model, result)
    if evaluation_loop and model_file:
      best_model_file = h5_model.save_best_model(trained_model, model_file)
    learning_curves.write_learning_curves(
        run_dir.path, epochs=run.clock.epoch_curve(outcome.times.global_step))
    page_file = page.write_page_of_finished_run(run_dir.path, settings.reporting)
  paths = {'report': page_file, 'model': model_file, 'best model': best_model_file,
           'checkpoint': trained_model.checkpoint.path}
  next_command = None
  try:
    raise_if_stopped(outcome, signals)
    if settings.export.export_dir:
      # A signal during the export raises StoppedBySignal.
      with show_phase('exporting and verifying the checkpoint of step {}'.format(
          trained_model.checkpoint.global_step)):
        result['export'] = exports.export_checkpoint(
            trained_model, run.data.test if evaluation_loop else run.data.train)
      paths = {'export': result['export']['path'], **paths}
    if model.has_convolutions:
      throughput.log_onednn_hint(result, settings.model.model, run.engine.devices.display_names)
    best_step = result.get('best', {}).get('global_step', result['global_step'])
    next_command = make_predict_command(
        run_dir.path, run.data.spec.image_shape is not None,
        'latest' if best_step == result['global_step'] else 'best')
  finally:
    throughput.log_training_summary(
        result, model.best_metric.name if evaluation_loop else None, paths, next_command)
  return result


def _describe_last_model(run: Run) -> TrainedModel:
  checkpoint, step = finding.find_latest_checkpoint_and_step(run.run_dir.path)
  assert checkpoint is not None
  return TrainedModel(run.settings, run.run_dir, run.data.spec,
                      ReadableCheckpoint(checkpoint, step, checkpoint))


def _make_evaluation_loop(run: Run, model: PreparedModel,
                          signals: SignalState) -> Optional[EvaluationLoop]:
  """Makes the evaluation loop of this process; returns None if this process does not evaluate."""
  process = run.process
  chief_evaluates = run.settings.run.evaluates and not process.has_evaluator
  if process.role != EVALUATOR and not (process.is_chief and chief_evaluates):
    return None
  write_report = functools.partial(
      evaluation.write_evaluation_report, run.settings.run, run.data.spec.labels,
      run_dir=run.run_dir)
  return EvaluationLoop(run, model, write_report, lambda: signals.stop_signum is not None)


def _train_as_worker(run: Run, model: PreparedModel, signals: SignalState) -> Dict[str, Any]:
  """Trains, sends the measurements to the chief, and returns the result of this worker."""
  with signals:
    outcome = train(run, model, signals)
    run.peers.leave_run(throughput.compute_worker_figures(
        run.settings.reporting, run.conditions, outcome.times))
  raise_if_stopped(outcome, signals)
  return dict(throughput.make_training_result(run.settings.run, outcome.times),
              task=run.process.name)


def _write_throughput_report(run: Run, model: PreparedModel, outcome: Outcome) -> Dict[str, Any]:
  worker_figures = run.peers.leave_run()  # Waits for the other workers.
  end_time_and_duration = throughput.read_end_time_and_duration(run.start_up)
  result = throughput.write_throughput_report(
      run.settings, dict(run.conditions, parameters=model.parameter_counts,
                         examples_seen=run.clock.examples_at(outcome.times.global_step),
                         start_step=run.start.step, **end_time_and_duration,
                         **run.skipped_images_figures,
                         total_run_secs=throughput.compute_total_secs(
                             run.run_dir.path, run.start.step, end_time_and_duration['run_secs'])),
      outcome.times, worker_figures)
  result.update(run.skipped_images_result)
  if outcome.stop_reason is not None:
    result['stopped_early'] = outcome.stop_reason.text
  return result
