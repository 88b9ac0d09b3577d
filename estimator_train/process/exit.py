"""Ends this process although some of its threads hang."""

import os
import sys
import threading

from estimator_train.errors import PeerLost, one_line

_PRINT_TIMEOUT_SECS = 2.


def exit_now(message: str, exit_code: int = PeerLost.exit_code) -> None:
  """Prints a message, then ends the process, even if a thread hangs."""
  # Prints in another thread, because `print` hangs if a hanging thread owns the lock of stderr.
  printer = threading.Thread(
      target=lambda: print(one_line(message), file=sys.stderr, flush=True), daemon=True)
  printer.start()
  printer.join(_PRINT_TIMEOUT_SECS)
  os._exit(exit_code)
