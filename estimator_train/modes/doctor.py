"""`--mode=doctor`: looks at the machine, and says what would stop or slow a run on it."""

import os
from typing import Any, Dict, Iterator, Optional

from estimator_train.doctor import (
  folders,
  gpu_use,
  gpus,
  host,
  kaggle_key,
  packages,
  tensorflow_import,
  tf_config_check,
)
from estimator_train.doctor.check_results import ERROR, OK, WARNING, Finding
from estimator_train.errors import UserError
from estimator_train.settings import Settings

IMAGE_VARIABLE = 'ESTIMATOR_TRAIN_IMAGE'  # Set in the Dockerfile.


def run(settings: Settings) -> Dict[str, Any]:
  """Prints what is found, a line each, and returns it as the result.

  Raises:
    UserError: there is an error among it; it has the result.
  """
  found = []
  for finding in _findings(settings):
    print(finding.line(), flush=True)  # At once: the next look may take a minute.
    found.append(finding)
  counts = {level: sum(finding.level == level for finding in found)
            for level in (OK, WARNING, ERROR)}
  result = {'mode': settings.mode, 'ok': counts[OK], 'warnings': counts[WARNING],
            'errors': counts[ERROR], 'checks': [finding._asdict() for finding in found]}
  if counts[ERROR]:
    raise UserError('this machine is not ready',
                    '{} error(s): {}'.format(counts[ERROR], ', '.join(
                        finding.name for finding in found if finding.level == ERROR)),
                    'do what the lines say', result)
  return result


def _findings(settings: Settings) -> Iterator[Finding]:
  """Yields what each check says, those of one subject next to each other."""
  python = packages.look_at_python()
  yield packages.check_python(python)
  if python.system != 'Linux':
    return  # The other looks are made for it.
  installed, in_image = packages.look_at_installed(), IMAGE_VARIABLE in os.environ
  build, there = packages.build(installed), gpus.look()
  yield packages.check_tensorflow(installed, bool(there.gpus), in_image)
  yield from packages.check_pins(installed, packages.look_at_requirements())
  imported = tensorflow_import.look()
  yield tensorflow_import.check(imported)
  yield packages.check_pillow(installed)
  about_gpus = gpus.check(there, build)
  yield from about_gpus
  if there.gpus and not any(finding.level == ERROR for finding in about_gpus):
    yield from _gpu_use(len(there.gpus), build, imported)
  yield from host.check(host.look(), build)
  yield from folders.check(folders.look(settings))
  yield tf_config_check.check(os.environ.get('TF_CONFIG'))
  yield kaggle_key.check(kaggle_key.look(os.environ), settings.dataset == 'oct2017',
                         in_image)


def _gpu_use(num_gpus: int, build: Optional[packages.Build],
             imported: tensorflow_import.Imported) -> Iterator[Finding]:
  """Yields whether TensorFlow can use GPUs that build and driver fit: else it is of no interest."""
  if build is not None and not build.is_nvidias:  # Which brings its own libraries.
    yield gpu_use.check_libraries(gpu_use.look_for_libraries())
  if imported.gpus is not None:
    yield gpu_use.check_seen(num_gpus, imported.gpus, imported.has_cuda,
                             os.environ.get('CUDA_VISIBLE_DEVICES'))
  if num_gpus > 1:
    yield from gpu_use.check_nccl(num_gpus, gpu_use.look_at_memory())
