"""Trainings by settings, without the command line and the reports."""

from estimator_train.process.signals import SignalState
from estimator_train.training import model as models, trainer
from estimator_train.training.evaluation.loop import EvaluationLoop
from estimator_train.training.run import open_run


def train(settings, write_reports=None, stop_step=None):
  """Trains, and returns the run and the outcome.

  Args:
    settings: of the run.
    write_reports: as of EvaluationLoop; None: the run is not evaluated.
    stop_step: where to stop, as a signal would; the schedule is that of the complete run.
  """
  with SignalState() as signals:
    run = open_run(settings)
    if stop_step is not None:
      run = run._replace(stop_step=stop_step)
    model = models.prepare(run)
    loop = write_reports and EvaluationLoop(run, model, write_reports, lambda: False)
    return run, trainer.train(run, model, signals, loop.evaluate_latest if loop else None)


def prepare(settings):
  """Returns a run and its model."""
  run = open_run(settings)
  return run, models.prepare(run)
