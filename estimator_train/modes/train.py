"""`--mode=train`: trains, without an evaluation at the end."""

from typing import Any, Dict

from estimator_train.exporting import export as exports, template_model
from estimator_train.process.signals import Noted
from estimator_train.reports import learning_curves, page, throughput
from estimator_train.settings import Settings
from estimator_train.training import cluster_tasks, plan, trainer as runs


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: what was trained and how fast."""
  cluster = cluster_tasks.find_cluster(settings)
  if cluster is not None and cluster.task in cluster.parameter_servers:
    return cluster_tasks.serve_parameters(cluster, settings)
  prepared = plan.prepare(settings, cluster)
  if prepared.is_chief:
    exports.make_folder(settings)
  with Noted() as noted:
    trained = runs.train(prepared, noted=noted)
    if cluster is not None and not cluster.is_chief:
      runs.finish(prepared, throughput.of_worker(settings, prepared.conditions, trained.timing))
      runs.raise_if_stopped(trained, noted)
      return dict(throughput.result_of(settings, trained.timing), task=str(cluster.task))
    result = throughput.write(settings, prepared.conditions, trained.timing,
                              runs.wait_for_workers(prepared))
    result.update(prepared.left_out)
    template_model.save(settings, prepared.dataset)
    learning_curves.write(settings)
    page.write_after(settings)
    runs.raise_if_stopped(trained, noted)
  if settings.export_dir:
    result['export'] = exports.export_latest(settings, prepared.dataset)
  return result
