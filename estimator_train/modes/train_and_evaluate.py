"""`--mode=train_and_evaluate`: trains, then evaluates the last checkpoint."""

import functools
from typing import Any, Dict

from estimator_train.exporting import export as exports, template_model
from estimator_train.process.signals import Noted
from estimator_train.reports import evaluation, learning_curves, page, throughput
from estimator_train.settings import Settings
from estimator_train.training import cluster_tasks, plan, trainer as runs
from estimator_train.training.evaluation.loop import Rounds


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: what was trained, how fast, and how well it does."""
  cluster = cluster_tasks.find_cluster(settings)
  if cluster is not None and cluster.task in cluster.parameter_servers:
    return cluster_tasks.serve_parameters(cluster, settings)
  prepared = plan.prepare(settings, cluster)
  noted = Noted()
  rounds = Rounds(prepared, functools.partial(evaluation.write, settings, prepared.dataset.labels),
                  lambda: noted.stop is not None)
  if prepared.is_evaluator:
    return runs.evaluate_each(prepared, rounds.evaluate)
  evaluates = cluster is None or not cluster.has_evaluator
  if prepared.is_chief:
    exports.make_folder(settings)
  with noted:
    trained = runs.train(prepared, rounds.evaluate_now if evaluates else None, noted)
    if cluster is not None and not cluster.is_chief:
      runs.finish(prepared, throughput.of_worker(settings, prepared.conditions, trained.timing))
      runs.raise_if_stopped(trained, noted)
      return dict(throughput.result_of(settings, trained.timing), task=str(cluster.task))
    result = throughput.write(settings, prepared.conditions, trained.timing,
                              runs.wait_for_workers(prepared))
    result.update(prepared.left_out)
    template_model.save(settings, prepared.dataset)
    if evaluates and noted.stop is None and not trained.is_early:
      result.update(rounds.evaluate())
    if trained.stopped_early is not None:
      result['stopped_early'] = trained.stopped_early
    learning_curves.write(settings)
    page.write_after(settings)
    runs.raise_if_stopped(trained, noted)
  if settings.export_dir:
    result['export'] = exports.export_latest(settings, prepared.dataset)
  return result
