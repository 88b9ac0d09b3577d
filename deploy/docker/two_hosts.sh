#!/usr/bin/env bash
# Trains on two or more hosts with plain Docker. Start it on each host, with the index of the host
# in the list and otherwise the same arguments.
#
#   deploy/docker/two_hosts.sh 0 host-a,host-b FLAG...    on host-a, the chief
#   deploy/docker/two_hosts.sh 1 host-a,host-b FLAG...    on host-b
#
# Optional environment variables: DATA and MODEL, folders to use instead of data/ and runs/ in the
# current folder (all hosts must share MODEL, for example over NFS); IMAGE; PORT (2222), which must
# be open between the hosts; GPUS, empty on hosts without GPUs.
#
# Exit code 138: a peer was lost. Start the script again on all hosts to resume.
set -euo pipefail

if (($# < 2)) || [[ ! $1 =~ ^[0-9]+$ ]]; then
  echo "error: the first arguments must be INDEX and HOST,HOST: got ${*:-nothing}:" \
    "call it as in two_hosts.sh 0 host-a,host-b FLAG..." >&2
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
mkdir -p "$data" "$model"  # Docker would create them as root.
gpus=()
if [[ ${GPUS-all} ]]; then gpus=(--gpus "${GPUS-all}"); fi

# Uses the host's network, because tasks listen on several ports and connect to each other.
exec docker run --rm "${gpus[@]}" --network host --env TF_CONFIG \
  --shm-size=1g --ulimit memlock=-1 --stop-timeout=120 --user "$(id -u):$(id -g)" \
  -v "$data:/data" -v "$model:/model" "${IMAGE:-estimator-train}" \
  --distribution_strategy=multi_worker_mirrored "$@"
