# Sourced by run_train.sh and tests/run.sh: creates the virtual environment in which they run.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# In the C locale, which is the default in containers, CPython 3.6 cannot read non-ASCII paths.
# CPython 3.7 makes the same change by itself.
if [[ ${LC_ALL:-${LC_CTYPE:-${LANG:-C}}} =~ ^(C|POSIX)$ ]]; then
  unset LC_ALL
  export LC_CTYPE=C.UTF-8
fi

# The build of TensorFlow: `stock`, or `onednn` for CPUs, which has separate environments.
case ${ESTIMATOR_TRAIN_TF:-stock} in
  stock) build= ;;
  onednn) build=-onednn ;;
  *)
    echo "error: ESTIMATOR_TRAIN_TF must be stock or onednn: got $ESTIMATOR_TRAIN_TF:" \
      "use one of them" >&2
    exit 2
    ;;
esac

# Whether make_venv.py has completed VENV from this lock file for this checkout, and its Python
# still exists. Uses only Bash to read the files, so that later starts are fast.
is_complete() {  # VENV LOCK
  [[ -r $1/installed.txt && "$(<"$1/installed.txt")" == "$(<"$2")"$'\n'"$root" ]] &&
    "$1/bin/python" -I -S -c '' 2>/dev/null
}

# Creates VENV unless it is complete, with CPython VERSION (3.6 or 3.7), by default the newest.
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

# Exports the time from which the program measures its start-up, so that it excludes the creation of
# the environment.
export_start_time() {
  if [[ -r /proc/uptime ]]; then
    read -r ESTIMATOR_TRAIN_STARTED_SECS _ </proc/uptime
    export ESTIMATOR_TRAIN_STARTED_SECS
  fi
}
