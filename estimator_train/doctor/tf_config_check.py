"""Checks TF_CONFIG, the environment variable that describes the cluster and this task."""

from typing import Optional

from estimator_train.cluster import tf_config
from estimator_train.doctor.check_results import CheckResult, error, ok
from estimator_train.errors import UserError


def count_workers(text: Optional[str]) -> int:
  """Returns the number of workers in TF_CONFIG; 1 if it is invalid or has no cluster."""
  try:
    cluster = tf_config.parse_cluster({'TF_CONFIG': text or ''})
  except UserError:
    return 1
  return cluster.num_workers if cluster else 1


def check_tf_config(text: Optional[str]) -> CheckResult:
  """Checks the content of TF_CONFIG, but not whether the addresses can be reached."""
  if not text:
    return ok('TF_CONFIG', 'not set: the run uses this machine alone')
  try:
    cluster = tf_config.parse_cluster({'TF_CONFIG': text})
  except UserError as invalid:
    found = '{}: {}'.format(invalid.what[len(tf_config.ERROR_PREFIX):], invalid.given)
    return error('TF_CONFIG', found, invalid.remedy)
  if cluster is None:
    return ok('TF_CONFIG', 'has no cluster: the run uses this machine alone')
  return ok('TF_CONFIG', '{} of {}'.format(cluster.task, tf_config.describe_task_counts(cluster)))
