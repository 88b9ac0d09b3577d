"""The kernels of an operation: for which devices they exist, and what they keep in host memory."""

import functools

from tensorflow.python.framework import kernels as registry

# TensorFlow keeps values of these types in host memory on every device.
HOST_TYPES = ('string', 'resource')


def find_kernel(operation, device_type):
  """Returns the KernelDef that runs an operation on a type of device; None if there is none.

  A kernel for the type DEFAULT runs on all devices.
  """
  kernels = _kernels_of(operation.type)
  for kind in (device_type, 'DEFAULT'):
    fitting = [kernel for kernel in kernels if kernel.device_type == kind
               and all(_is_allowed(operation, constraint) for constraint in kernel.constraint)]
    if fitting:
      return max(fitting, key=lambda kernel: kernel.priority)
  return None


@functools.lru_cache(maxsize=None)
def _kernels_of(kind):
  return tuple(registry.get_registered_kernels_for_op(kind).kernel)


def _is_allowed(operation, constraint):
  try:
    value = operation.get_attr(constraint.name)
  except ValueError:
    return True
  types = value if isinstance(value, list) else [value]
  return all(getattr(each, 'as_datatype_enum', each) in constraint.allowed_values.list.type
             for each in types)


def tensors_in_host_memory(operation, device_type):
  """Returns two lists of booleans: which inputs and which outputs the kernel has in host memory."""
  if device_type == 'CPU':
    return [True] * len(operation.inputs), [True] * len(operation.outputs)
  kernel = find_kernel(operation, device_type)
  host_arguments = set(kernel.host_memory_arg) if kernel is not None else set()
  definition = operation.op_def
  return (_flags(operation, definition.input_arg, operation.inputs, host_arguments),
          _flags(operation, definition.output_arg, operation.outputs, host_arguments))


def _flags(operation, arguments, tensors, host_arguments):
  flags = []
  for argument in arguments:
    flags += [argument.name in host_arguments] * _length(operation, argument)
  return [flag or tensor.dtype.base_dtype.name in HOST_TYPES
          for flag, tensor in zip(flags, tensors)]


def _length(operation, argument):
  """Returns of how many tensors an argument consists."""
  if argument.number_attr:
    return operation.get_attr(argument.number_attr)
  if argument.type_list_attr:
    return len(operation.get_attr(argument.type_list_attr))
  return 1
