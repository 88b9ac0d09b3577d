"""`--mode=export`: exports a checkpoint of a model_dir for serving; it needs none of the data."""

from typing import Any, Dict

from estimator_train.exporting import export as exports, trained_model
from estimator_train.settings import Settings, groups


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the exported version, and of which checkpoint it is.

  Raises:
    UserError: there is no checkpoint, or it is of another model; or it cannot be exported.
  """
  found = trained_model.find(settings)
  exports.make_folder(settings[groups.PredictionAndExport])
  return dict(mode=settings.mode, model_dir=settings.model_dir,
              **exports.export(settings, found.dataset, found.checkpoint))
