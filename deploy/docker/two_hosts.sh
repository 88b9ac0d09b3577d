#!/usr/bin/env bash
# Trains on two hosts, or more, with plain Docker: to be started on each of them, with its place in
# the list of hosts and otherwise the same arguments.
#
#   deploy/docker/two_hosts.sh 0 host-a,host-b FLAG...    on host-a, which leads
#   deploy/docker/two_hosts.sh 1 host-a,host-b FLAG...    on host-b
#
# Environment, all optional: DATA and MODEL, folders in place of data/ and runs/ here, the latter of
# which the hosts must share (over NFS, say); IMAGE; PORT (2222), which must be open between them;
# GPUS, empty where there are none.
#
# Exit code 138: a peer was lost; start it again on all hosts, and it goes on.
set -euo pipefail

if (($# < 2)) || [[ ! $1 =~ ^[0-9]+$ ]]; then
  echo "error: INDEX and HOST,HOST are missing: $*:" \
    "give them first, as in two_hosts.sh 0 host-a,host-b FLAG..." >&2
  exit 2
fi
index=$1
IFS=, read -ra hosts <<<"$2"
shift 2

addresses=$(printf "\"%s:${PORT:-2222}\", " "${hosts[@]}")
export TF_CONFIG="{\"cluster\": {\"worker\": [${addresses%, }]},
  \"task\": {\"type\": \"worker\", \"index\": $index}}"

data=${DATA:-$PWD/data}
model=${MODEL:-$PWD/runs}
mkdir -p "$data" "$model"  # Docker would make them as root.
gpus=()
if [[ ${GPUS-all} ]]; then gpus=(--gpus "${GPUS-all}"); fi

# The host's network, as tasks listen to ports of their own and connect to each other.
exec docker run --rm "${gpus[@]}" --network host --env TF_CONFIG \
  --shm-size=1g --ulimit memlock=-1 --stop-timeout=120 --user "$(id -u):$(id -g)" \
  -v "$data:/data" -v "$model:/model" "${IMAGE:-estimator-train}" \
  --distribution_strategy=multi_worker_mirrored "$@"
