"""Initializes sessions, observes their steps, and makes traces of runs.

The first `session.run` for each set of tensors takes about 20 ms longer than later ones, because
TensorFlow prunes and optimizes the graph for these tensors.
"""

from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf
from tensorflow.python.client import session as session_lib, timeline
from tensorflow.python.keras import backend
from tensorflow.python.training import training_util


def add_local_init_op(op: tf.Operation) -> None:
  """Makes an operation run after a session has been initialized or restored.

  Must be called in the `begin` of a hook. No defect: this function extends the collection from
  which Scaffold takes its `local_init_op`
  (tensorflow_core/python/training/monitored_session.py:221), because no public function does.
  """
  local_init = tf.get_collection_ref(tf.GraphKeys.LOCAL_INIT_OP)
  local_init[:] = [tf.group(op, *(local_init or [tf.train.Scaffold.default_local_init_op()]))]


def skip_ready_checks() -> None:
  """Makes sessions of the default graph start without checks for uninitialized variables.

  Must be called before Estimator makes the Scaffold, in the process that initializes or restores
  all variables itself. Such a session is always ready.

  Defect: tensorflow_core/python/training/monitored_session.py:194 and
  tensorflow_estimator/python/estimator/estimator.py:1832 make several operations for each variable,
  which report whether the variable is initialized, although only a process that waits for another
  one needs them. Symptom: the start takes longer. A Scaffold takes the operation from a collection,
  and an empty list of names means that the session is ready.
  """
  no_names = tf.constant([], tf.string)
  for key in (tf.GraphKeys.READY_OP, tf.GraphKeys.READY_FOR_LOCAL_INIT_OP):
    tf.get_collection_ref(key)[:] = [no_names]


def share_ready_op() -> None:
  """Makes both checks for uninitialized variables in the default graph run the same operations.

  Must be called in the `begin` of a hook.

  Defect: tensorflow_core/python/training/monitored_session.py:203 and
  tensorflow_estimator/python/estimator/estimator.py:1832 make different operations for the checks
  before and after the local variables are initialized, even if there are no local variables.
  Symptom: the start takes longer, because TensorFlow optimizes the graph for both checks.
  """
  ready_for_local_init = tf.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP)
  has_local_state = any(map(tf.get_collection, (
      tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.RESOURCES, tf.GraphKeys.LOCAL_RESOURCES)))
  if ready_for_local_init and not has_local_state:
    tf.get_collection_ref(tf.GraphKeys.READY_OP)[:] = ready_for_local_init


def global_step_tensor(graph: tf.Graph) -> tf.Tensor:
  """Returns the tensor of the global step that TensorFlow's hooks read.

  Private API: `GLOBAL_STEP_READ_KEY` (tensorflow_core/python/training/training_util.py:34), because
  the public `get_global_step` returns the variable, whose value is another tensor. A first run of
  that tensor would take longer.
  """
  tensors = graph.get_collection(training_util.GLOBAL_STEP_READ_KEY)
  return tensors[0] if tensors else tf.train.get_global_step(graph)


def read_global_step(session: tf.Session) -> int:
  return int(session.run(global_step_tensor(session.graph)))


def may_have_trained() -> bool:
  """Returns whether this process has probably trained or evaluated a model in a session.

  Private API: `_python_session_create_counter` (client/session.py:47) and `_SESSION`
  (keras/backend.py:95), because no public function returns the number of sessions that were
  created, or Keras's session. The conversion of a Keras model to an Estimator creates Keras's
  session, and a second one that saves the initial weights. Any further session may have trained.
  """
  has_keras_session = getattr(backend._SESSION, 'session', None) is not None
  created = session_lib._python_session_create_counter.get_cell().value()
  return created > (2 if has_keras_session else 0)


class StepObserver:
  """Observes the steps of a session, and checkpoints between steps, in the `run` of the session.

  Defect: MonitoredTrainingSession (tensorflow_core/python/training/monitored_session.py:544 and
  580) calls Estimator's hooks before the user's hooks. One of Estimator's hooks saves checkpoints
  and starts their evaluation. Symptom: to a hook of the user, saving and evaluating a checkpoint
  seem to be part of the step.

  Args:
    before_step: is called immediately before the run of an expected step.
    after_step: is called immediately after this run.

  Attributes:
    session: the session whose `run` is replaced; None if there is none.
    has_saved: whether another run has saved a checkpoint since `expect_step`.
  """

  def __init__(self, before_step: Callable[[], None], after_step: Callable[[], None]) -> None:
    self.session: Optional[tf.Session] = None
    self.has_saved = False
    self._before_step, self._after_step = before_step, after_step
    self._is_step_expected = False
    self._observed_run: Optional[Callable[..., Any]] = None
    self._replaced_run: Optional[Callable[..., Any]] = None

  def attach(self, session: tf.Session) -> None:
    """Replaces `run` of a session. Detaches the session that was attached before."""
    self.detach()
    self._replaced_run = vars(session).get('run')
    run = session.run

    def observed_run(fetches: Any, *args: Any, **options: Any) -> Any:
      # The run of a step has a dict of the fetches of the caller and of the hooks.
      if not (self._is_step_expected and isinstance(fetches, dict) and 'caller' in fetches):
        result = run(fetches, *args, **options)
        self.has_saved = self.has_saved or _is_checkpoint(
            result, args[0] if args else options.get('feed_dict'))
        return result
      self._is_step_expected = False
      self._before_step()
      result = run(fetches, *args, **options)
      self._after_step()
      return result

    session.run = self._observed_run = observed_run
    self.session = session

  def detach(self) -> None:
    """Restores `run` of the session, unless another object has replaced it since then."""
    if self.session is not None and vars(self.session).get('run') is self._observed_run:
      del self.session.run
      if self._replaced_run is not None:
        self.session.run = self._replaced_run
    self.session = self._observed_run = self._replaced_run = None

  def expect_step(self) -> None:
    """Announces that one of the next runs of the session is a step."""
    self._is_step_expected = True
    self.has_saved = False


def _is_checkpoint(result: Any, feed_dict: Optional[Dict[Any, Any]]) -> bool:
  """Returns whether a run saved a checkpoint: it was fed a path, and returned this path."""
  return isinstance(result, bytes) and result in [
      tf.compat.as_bytes(value) for value in (feed_dict or {}).values() if isinstance(value, str)]


def chrome_trace(step_stats: Any) -> str:
  """Returns a Chrome trace of the operations in the step_stats of a RunMetadata, as JSON.

  Private API: `timeline.Timeline` (tensorflow_core/python/client/timeline.py:346), because no
  public function makes a Chrome trace. The trace has no dataflow arrows, because arrows would
  wrongly connect operations of the same name in different steps.
  """
  return timeline.Timeline(step_stats).generate_chrome_trace_format(
      show_dataflow=False)
