#!/usr/bin/env bash
# Creates the environment in .venv/ if it is missing, then runs the program with the given flags.
#
#   ./run_train.sh             trains the quickstart, on data that ships with the package
#   ./run_train.sh FLAG...     runs python -m estimator_train FLAG...
#   ./run_train.sh --local_workers=N [--local_ps=M] [--max_restarts=K]
#                  [--local_cores=C] [--local_gpus=G] [FLAG...]
#                              starts a cluster of several tasks on this machine
#   ./run_train.sh --tensorboard [FLAG...]    also starts TensorBoard
#
# ESTIMATOR_TRAIN_TF=onednn ./run_train.sh ...
#                              uses the oneDNN build of TensorFlow, for CPUs, in .venv-onednn/
#
# Can be called from any folder; relative paths in flags refer to the current folder.
set -euo pipefail

# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/requirements/environment.sh"

module=estimator_train
for flag; do
  if [[ $flag =~ ^--?(local_workers|local_ps|max_restarts|local_cores|local_gpus)(=|$) ||
        $flag =~ ^--?tensorboard$ ]]; then
    module=estimator_train.launcher.local_cluster
  fi
done
if (($# == 0)); then set -- "--flagfile=$root/estimator_train/configs/quickstart.flags"; fi

ensure_venv "$root/.venv$build"
export_start_time
export ESTIMATOR_TRAIN_COMMAND=$0  # For the commands that the program proposes.
exec "$root/.venv$build/bin/python" -m "$module" "$@"
