"""`--mode=train_and_evaluate`, and `--mode=train`, which does not evaluate."""

from typing import Any, Dict

from estimator_train.cluster.worker import EVALUATOR, PARAMETER_SERVER, SINGLE_WORKER, Worker
from estimator_train.distribution.engines import parameter_server
from estimator_train.exporting import export as exports, h5_model
from estimator_train.process.signals import SignalState
from estimator_train.reports import evaluation, learning_curves, page, summary, throughput
from estimator_train.settings import Settings, groups
from estimator_train.training.trainer import (
  Trainer,
  TrainingOutcome,
  raise_if_stopped,
  run_evaluator_task,
)


def run(settings: Settings, worker: Worker = SINGLE_WORKER) -> Dict[str, Any]:
  """Performs the role of this process in the run, and returns the result of the mode."""
  if worker.role == PARAMETER_SERVER:
    return parameter_server.serve_variables(settings, worker)
  if worker.role == EVALUATOR:
    return run_evaluator_task(settings, worker, evaluation.write_evaluation_report)
  signals = SignalState()
  # In a cluster with an evaluator task, the chief does not evaluate.
  evaluates = settings.evaluates and not worker.has_evaluator
  trainer = Trainer(settings, signals,
                    evaluation.write_evaluation_report if evaluates else None, worker)
  if not worker.is_chief:
    return _run_worker(trainer, signals, worker)
  exports.make_export_dir(settings[groups.PredictionAndExport])
  with signals:
    outcome = trainer.train()
    result = _evaluate_and_report(trainer, outcome, settings, signals)
  raise_if_stopped(outcome, signals)  # From here on, a signal itself raises an error.
  if settings.export_dir:
    result['export'] = exports.export_latest(settings, trainer.plan.data.dataset)
  return result


def _run_worker(trainer: Trainer, signals: SignalState, worker: Worker) -> Dict[str, Any]:
  """Trains as a worker, sends the measurements to the chief, and returns the result."""
  settings, conditions = trainer.plan.settings, trainer.plan.conditions
  with signals:
    outcome = trainer.train()
    trainer.leave_cluster(throughput.worker_figures(
        settings[groups.Reporting], conditions, outcome.timing))
  raise_if_stopped(outcome, signals)
  return dict(throughput.training_result(settings[groups.Run], outcome.timing), task=worker.name)


def _evaluate_and_report(trainer: Trainer, outcome: TrainingOutcome, settings: Settings,
                         signals: SignalState) -> Dict[str, Any]:
  """Writes the reports and model.h5, evaluates unless a signal arrived, and returns the result."""
  plan = trainer.plan
  measurements_of_workers = trainer.leave_cluster()
  result = throughput.write_throughput_report(
      settings, plan.conditions, outcome.timing, measurements_of_workers)
  result.update(plan.skipped_images_result)
  model_file = h5_model.save_latest_model(settings, plan.data.dataset)
  if trainer.evaluation and signals.stop_signum is None and not outcome.stopped_by_signal:
    result.update(trainer.evaluation.evaluate())
  if outcome.stop_reason is not None:
    result['stopped_early'] = outcome.stop_reason.text
  learning_curves.write_learning_curves(settings.model_dir)
  page_file = page.write_page_of_finished_run(settings.model_dir, settings[groups.Reporting])
  best_metric = trainer.evaluation.best_metric.name if trainer.evaluation else None
  summary.log_summary(result, best_metric, {
      'report': page_file, 'model': model_file, 'checkpoint': plan.run_dir.last_checkpoint()})
  return result
