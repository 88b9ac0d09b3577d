"""`--mode=train_and_evaluate`, and `--mode=train`, which is the same without any evaluation."""

import functools
from typing import Any, Dict, Optional

from estimator_train.cluster.tf_config import Cluster
from estimator_train.exporting import export as exports, template_model
from estimator_train.process.signals import Noted
from estimator_train.reports import evaluation, learning_curves, page, throughput
from estimator_train.settings import Settings
from estimator_train.training import cluster_tasks, plan, trainer
from estimator_train.training.evaluation.loop import Rounds


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: what was trained, how fast, and how well it does."""
  cluster = cluster_tasks.find_cluster(settings)
  if cluster is not None and cluster.task in cluster.parameter_servers:
    return cluster_tasks.serve_parameters(cluster, settings)
  prepared = plan.prepare(settings, cluster)
  signals = Noted()
  rounds = Rounds(prepared, functools.partial(evaluation.write, settings, prepared.dataset.labels),
                  lambda: signals.stop is not None)
  if prepared.is_evaluator:
    return trainer.evaluate_each(prepared, rounds.evaluate)
  if prepared.is_chief:
    exports.make_folder(settings)
  evaluates = settings.evaluates and (cluster is None or not cluster.has_evaluator)
  with signals:
    result = _train(prepared, rounds if evaluates else None, signals, cluster)
  if prepared.is_chief and settings.export_dir:
    result['export'] = exports.export_latest(settings, prepared.dataset)
  return result


def _train(prepared: plan.Run, rounds: Optional[Rounds], signals: Noted,
           cluster: Optional[Cluster]) -> Dict[str, Any]:
  """Trains, evaluates the last checkpoint, and writes the reports, which a signal cuts short."""
  settings = prepared.settings
  trained = trainer.train(prepared, rounds.evaluate_now if rounds else None, signals)
  if cluster is not None and not cluster.is_chief:
    trainer.finish(prepared, throughput.of_worker(settings, prepared.conditions, trained.timing))
    trainer.raise_if_stopped(trained, signals)
    return dict(throughput.result_of(settings, trained.timing), task=str(cluster.task))
  result = throughput.write(settings, prepared.conditions, trained.timing,
                            trainer.wait_for_workers(prepared))
  result.update(prepared.left_out)
  template_model.save(settings, prepared.dataset)
  if rounds and signals.stop is None and not trained.is_early:
    result.update(rounds.evaluate())
  if trained.stopped_early is not None:
    result['stopped_early'] = trained.stopped_early
  learning_curves.write(settings)
  page.write_after(settings)
  trainer.raise_if_stopped(trained, signals)
  return result
