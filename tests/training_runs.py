"""Trainings by settings, without the command line and the reports."""

from estimator_train.process.signals import SignalState
from estimator_train.process.start_up import StartUpTimer
from estimator_train.training.plan import make_plan
from estimator_train.training.prepared_model import prepare_model
from estimator_train.training.trainer import Trainer


def train(settings, write_reports=None, stop_step=None):
  """Trains, and returns the plan and the outcome.

  Args:
    settings: of the run.
    write_reports: as of Trainer.
    stop_step: where to stop, as a signal would; the plan goes on as it was.
  """
  with SignalState() as signals:
    trainer = Trainer(settings, signals, write_reports)
    if stop_step is not None:
      trainer.plan = trainer.plan._replace(stop_step=stop_step)
    return trainer.plan, trainer.train()


def prepare(settings):
  """Returns the plan of a run and its model."""
  start_up = StartUpTimer()
  plan = make_plan(settings, start_up)
  return plan, prepare_model(plan, start_up)
