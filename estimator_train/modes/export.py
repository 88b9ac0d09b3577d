"""`--mode=export`: exports a checkpoint for serving. The files of the data set are not read."""

from typing import Any, Dict

from estimator_train.exporting import export as exports, restored_model
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.system.progress import show_phase
from estimator_train.system.summary import log_summary


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the exported version and its checkpoint.

  Raises:
    UserError: there is no checkpoint, the checkpoint does not fit the model, or the export failed.
  """
  if not settings.export.export_dir:
    settings = settings.evolve(export_dir=run_dir.path_to('export', settings.export.export_format))
  with restored_model.open_trained_model(settings, run_dir) as trained_model:
    exports.make_export_dir(settings.export)
    with show_phase('exporting and verifying the checkpoint of step {}'.format(
        trained_model.checkpoint.global_step)):
      export = exports.export_checkpoint(trained_model)
  log_summary('exported the checkpoint of step {} as {}'.format(
      export['global_step'], export['format']), [
          ('export', export['path']), ('checkpoint', export['checkpoint'])],
              exports.make_command_to_read(export))
  return dict(mode=settings.run.mode, model_dir=settings.run.model_dir, **export)
