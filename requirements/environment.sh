# For run_train.sh and tests/run.sh, which source it: makes the virtual environment they run in.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# In the C locale, which containers have, CPython 3.6 reads no path that is not ASCII. 3.7 makes
# this change by itself.
if [[ ${LC_ALL:-${LC_CTYPE:-${LANG:-C}}} =~ ^(C|POSIX)$ ]]; then
  unset LC_ALL
  export LC_CTYPE=C.UTF-8
fi

# Which build of TensorFlow: `stock`, or `onednn` for CPUs, in environments beside the stock ones.
case ${ESTIMATOR_TRAIN_TF:-stock} in
  stock) build= ;;
  onednn) build=-onednn ;;
  *)
    echo "error: ESTIMATOR_TRAIN_TF takes stock or onednn: $ESTIMATOR_TRAIN_TF: name one of them" >&2
    exit 2
    ;;
esac

# Whether make_venv.py finished VENV, from this lock file, for this checkout, and its Python is
# still there. Bash alone reads the files: this is all that a second start costs.
is_complete() {  # VENV LOCK
  [[ -r $1/installed.txt && "$(<"$1/installed.txt")" == "$(<"$2")"$'\n'"$root" ]] &&
    "$1/bin/python" -I -S -c '' 2>/dev/null
}

# Makes VENV unless it is complete; by CPython VERSION (3.6 or 3.7), or the best there is.
ensure_venv() {  # VENV [VERSION]
  local venv=$1 version python
  for version in ${2:-3.7 3.6}; do
    if is_complete "$venv" "$root/requirements/py${version/./}$build.txt"; then return; fi
  done
  python=$("$root/requirements/find_python.sh" "${@:2}")
  version=$("$python" -I -S -c 'import sys; print("%d%d" % sys.version_info[:2])')
  "$python" -I "$root/requirements/make_venv.py" "$venv" \
    "$root/requirements/py$version$build.txt"
}

# Exports where the program counts its start-up from; a first start has spent a minute on setting
# up.
export_start_time() {
  if [[ -r /proc/uptime ]]; then
    read -r ESTIMATOR_TRAIN_STARTED_SECS _ </proc/uptime
    export ESTIMATOR_TRAIN_STARTED_SECS
  fi
}
