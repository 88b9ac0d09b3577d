"""Learning rates that depend on the global step."""

from typing import Any, Dict

import tensorflow.compat.v1 as tf


class WarmUp(tf.keras.optimizers.schedules.LearningRateSchedule):
  """Rises linearly to the full rate in the first steps, then stays (Goyal et al. 2017, 2.2).

  Step 0 takes 1/warmup_steps of the rate and step warmup_steps - 1 all of it. Being a function of
  the global step it goes on exactly after a resume, and is no variable that a checkpoint could
  bring back.

  Args:
    learning_rate: the full rate.
    warmup_steps: 0 for the full rate from the start.
  """

  def __init__(self, learning_rate: float, warmup_steps: int) -> None:
    super().__init__()
    self.learning_rate = learning_rate
    self.warmup_steps = warmup_steps

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    if not self.warmup_steps:
      return tf.constant(self.learning_rate, tf.float32)
    done = tf.cast(step + 1, tf.float32) / self.warmup_steps
    return self.learning_rate * tf.minimum(done, 1.)

  def get_config(self) -> Dict[str, Any]:
    return {'learning_rate': self.learning_rate, 'warmup_steps': self.warmup_steps}


# model_to_estimator makes the optimizer again from its configuration, which names the class.
tf.keras.utils.get_custom_objects()[WarmUp.__name__] = WarmUp
