"""`--mode=train_and_evaluate`, and `--mode=train`, which is the same without any evaluation."""

from typing import Any, Dict

from estimator_train.cluster.worker import ALONE, EVALUATOR, PARAMETER_SERVER, Worker
from estimator_train.distribution.engines import parameter_server
from estimator_train.exporting import export as exports, template_model
from estimator_train.process.signals import SignalState
from estimator_train.reports import evaluation, learning_curves, page, throughput
from estimator_train.settings import Settings, groups
from estimator_train.training.trainer import (
  Trained,
  Trainer,
  follow_checkpoints,
  raise_if_stopped,
)


def run(settings: Settings, worker: Worker = ALONE) -> Dict[str, Any]:
  """Returns the result: what was trained, how fast, and how good the model is."""
  if worker.role == PARAMETER_SERVER:
    return parameter_server.serve(settings, worker)
  if worker.role == EVALUATOR:
    return follow_checkpoints(settings, worker, evaluation.write)
  signals = SignalState()
  evaluates = settings.evaluates and not worker.has_evaluator
  trainer = Trainer(settings, signals, evaluation.write if evaluates else None, worker)
  if not worker.is_chief:
    return _run_worker(trainer, signals, worker)
  exports.make_folder(settings[groups.PredictionAndExport])
  with signals:
    trained = trainer.train()
    result = _report(trainer, trained, settings, signals)
    raise_if_stopped(trained, signals)
  if settings.export_dir:
    result['export'] = exports.export_latest(settings, trainer.plan.data.dataset)
  return result


def _run_worker(trainer: Trainer, signals: SignalState, worker: Worker) -> Dict[str, Any]:
  """Trains as a worker that is not the chief, which reports for all."""
  settings, conditions = trainer.plan.settings, trainer.plan.conditions
  with signals:
    trained = trainer.train()
    trainer.finish(throughput.of_worker(settings[groups.Reporting], conditions, trained.timing))
    raise_if_stopped(trained, signals)
  return dict(throughput.result_of(settings[groups.Run], trained.timing), task=worker.name)


def _report(trainer: Trainer, trained: Trained, settings: Settings,
            signals: SignalState) -> Dict[str, Any]:
  """Evaluates the last checkpoint, which a signal cuts short, and writes the reports."""
  plan = trainer.plan
  result = throughput.write(settings, plan.conditions, trained.timing, trainer.finish())
  result.update(plan.skipped_images)
  template_model.save(settings, plan.data.dataset)
  if trainer.evaluation and signals.stop is None and not trained.is_early:
    result.update(trainer.evaluation.evaluate())
  if trained.stop_reason is not None:
    result['stopped_early'] = trained.stop_reason.text
  learning_curves.write(settings[groups.Run])
  page.write_after(settings.model_dir, settings[groups.Reporting])
  return result
