#!/usr/bin/env bash
# Trains: sets up what is missing (once, in .venv/), then runs the program with the given flags.
#
#   ./run_train.sh             the quickstart, on data that ships with the package
#   ./run_train.sh FLAG...     python -m estimator_train FLAG...
#   ./run_train.sh --local_workers=N [--local_ps=M] [--max_restarts=K]
#                  [--local_cores=C] [--local_gpus=G] [FLAG...]
#                              the same as a cluster of several tasks on this machine
#   ./run_train.sh --tensorboard [FLAG...]    the same with TensorBoard beside it
#
# ESTIMATOR_TRAIN_TF=onednn ./run_train.sh ...    the same on TensorFlow's build for CPUs, in
#                              .venv-onednn/
#
# Works from any folder; relative paths in flags are the caller's.
set -euo pipefail

# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/requirements/environment.sh"

beside=
module=estimator_train
flags=("$@")
for flag; do
  if [[ $flag =~ ^--?(local_workers|local_ps|max_restarts|local_cores|local_gpus)(=|$) ]]; then
    module=estimator_train.launcher.local_cluster
  fi
  if [[ $flag =~ ^--?tensorboard$ ]]; then beside=1; fi
done
if ((${#flags[@]} == 0)); then
  flags=("--flagfile=$root/estimator_train/configs/quickstart.flags")
fi

venv=$root/.venv$build
ensure_venv "$venv"
# Where the program counts its start-up from; a first start has spent a minute on setting up.
if [[ -r /proc/uptime ]]; then
  read -r ESTIMATOR_TRAIN_STARTED_SECS _ </proc/uptime
  export ESTIMATOR_TRAIN_STARTED_SECS
fi
if [[ $beside ]]; then module=estimator_train.launcher.with_tensorboard; fi
exec "$venv/bin/python" -m "$module" "${flags[@]}"
