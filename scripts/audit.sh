#!/usr/bin/env bash
# Queries the package index for known vulnerabilities of the locked packages, with pip-audit in a
# temporary environment, and compares them with the table in SECURITY.md. Requires CPython 3.9 or
# later. Exit code 1: a vulnerability is missing in the table. Exit code 2: the index has no
# information about a package, or pip-audit could not be run.
#
#   scripts/audit.sh
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

shopt -s nullglob
for python in python3 python3.{9..14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.{9,[1-9][0-9]}*/bin/python; do
  if "$python" -I -c 'import sys, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    "$python" -m venv "$work/venv"
    break
  fi
done
if [[ ! -x $work/venv/bin/python ]]; then
  echo 'error: pip-audit requires CPython 3.9 or later: none found: install one' >&2
  exit 2
fi
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit

for lock in "$root/requirements"/*.txt; do
  name=$(basename "$lock" .txt)
  # Names and versions only: pip-audit silently skips packages whose markers exclude the Python that
  # runs it.
  sed -nE 's/^([A-Za-z0-9._-]+==[^ ;]+).*/\1/p' "$lock" >"$work/$name.txt"
  # pip-audit has the same exit code for a vulnerability and for a failure, but after a failure
  # there is no output file.
  "$work/venv/bin/pip-audit" --requirement="$work/$name.txt" --disable-pip --no-deps --format=json \
    --progress-spinner=off --output="$work/$name.json" 2>"$work/$name.log" || true
  if [[ ! -s $work/$name.json ]]; then
    tail -n 3 "$work/$name.log" >&2
    echo "error: pip-audit failed on $name.txt: see above: run it again later" >&2
    exit 2
  fi
done
"$work/venv/bin/python" -I "$root/scripts/audit.py" "$root/SECURITY.md" "$work"/*.json
