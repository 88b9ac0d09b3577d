"""Which batches a source yields in tests: the order, the pixels and the batch, as one value."""

from typing import NamedTuple

from estimator_train.data.batching import BatchSettings, OrderSettings, PixelSettings


class InputPlan(NamedTuple):
  """The arguments of `make_train_input_fn`; those of `make_eval_input_fn` are `plan.evaluation`."""
  order: OrderSettings
  pixels: PixelSettings
  batch: BatchSettings

  @property
  def evaluation(self):
    return self.pixels._replace(augment='none'), self.batch

  def given(self, **values):
    """Returns the plan with other values of fields of any part."""
    parts = [part._replace(**{name: values.pop(name) for name in part._fields if name in values})
             for part in self]
    assert not values
    return InputPlan(*parts)


def plan(image_shape, num_classes, size, **values):
  return InputPlan(OrderSettings(), PixelSettings(image_shape),
                   BatchSettings(size, num_classes, False)).given(**values)
