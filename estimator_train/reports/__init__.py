"""Writes the reports of a run, and the page that shows them."""

import os

REPORT_FOLDER = 'report'  # In a model_dir: the page, and the data and images of its charts.
TRAIN_BATCH_FILE = 'train_batch.png'  # In REPORT_FOLDER.


def make_report_folder(model_dir: str) -> str:
  """Makes REPORT_FOLDER if it is missing, and returns its path."""
  folder = os.path.join(model_dir, REPORT_FOLDER)
  os.makedirs(folder, exist_ok=True)
  return folder
