"""TF_CONFIG: which process of a cluster this is, as TensorFlow and cluster managers tell it."""

from typing import Optional

from estimator_train.cluster import tf_config
from estimator_train.doctor.check_results import Finding, error, ok
from estimator_train.errors import UserError


def check(text: Optional[str]) -> Finding:
  """Says whether TF_CONFIG has the right form; whether the addresses answer is not asked."""
  if not text:
    return ok('TF_CONFIG', 'not set: this machine alone')
  try:
    cluster = tf_config.read({'TF_CONFIG': text})
  except UserError as wrong:
    found = '{}: {}'.format(wrong.what[len(tf_config.PREFIX):], wrong.given)
    return error('TF_CONFIG', found, wrong.remedy)
  if cluster is None:
    return ok('TF_CONFIG', 'names no cluster: this machine alone')
  return ok('TF_CONFIG', '{} of {}'.format(cluster.task, tf_config.counts(cluster)))
