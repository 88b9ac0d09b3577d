"""Compares predictions of the scaling model with published figures.

  python tests/benchmarks/scaling_model.py

The figures are those of the TensorFlow benchmarks of May 2017 (tensorflow/docs_src/performance/
benchmarks.md in the repository tensorflow/tensorflow), with synthetic data, of the Horovod paper
(arXiv:1802.05799), and of docs/performance.md. For each model, the figures with the most GPUs are
left out, predicted from the others, and compared.

For Horovod, only the efficiency on 512 GPUs is published. The time that the all-reduce of ResNet-50
adds to a step, relative to the size of the gradients, gives the prediction for VGG-16.
"""

import sys
from typing import Dict, List, Tuple

import common

sys.path.insert(0, str(common.ROOT))
from estimator_train.modes.scaling.prediction import Observation, Prediction, fit  # noqa: E402

# Images/sec by machine and model, then by images per GPU, then by number of GPUs.
Rates = Dict[int, Dict[int, float]]
PUBLISHED: Dict[Tuple[str, str], Rates] = {
    ('8 P100, DGX-1', 'InceptionV3'): {
        64: {1: 142, 2: 284, 4: 569, 8: 1131}, 32: {1: 128, 2: 259, 4: 520, 8: 995}},
    ('8 P100, DGX-1', 'ResNet-50'): {
        64: {1: 219, 2: 422, 4: 852, 8: 1734}, 32: {1: 195, 2: 368, 4: 768, 8: 1485}},
    ('8 P100, DGX-1', 'ResNet-152'): {
        64: {1: 91.8, 2: 181, 4: 356, 8: 716}, 32: {1: 82.7, 2: 160, 4: 317, 8: 632}},
    ('8 P100, DGX-1', 'AlexNet'): {512: {1: 2987, 2: 5658, 4: 10509, 8: 17822}},
    ('8 P100, DGX-1', 'VGG16'): {
        64: {1: 154, 2: 295, 4: 584, 8: 1081}, 32: {1: 144, 2: 281, 4: 549, 8: 820}},
    ('8 K80, EC2', 'ResNet-50'): {
        64: {1: 51.5, 2: 98, 4: 195, 8: 384}, 32: {1: 49, 2: 94.1, 4: 184, 8: 355}},
    ('8 K80, EC2', 'AlexNet'): {512: {1: 684, 2: 1244, 4: 2479, 8: 4853}},
    ('8 K80, EC2', 'VGG16'): {32: {1: 36.3, 2: 69.4, 4: 141, 8: 260}},
    ('64 K80, EC2', 'InceptionV3'): {64: {1: 29.7, 8: 229, 16: 459, 32: 902, 64: 1783}},
    ('64 K80, EC2', 'ResNet-50'): {64: {1: 52.4, 8: 378, 16: 751, 32: 1388, 64: 2744}},
    ('64 K80, EC2', 'ResNet-152'): {32: {1: 19.4, 8: 146, 16: 291, 32: 565, 64: 981}},
}
# On 512 P100 with 64 images each: efficiency, images/sec of one GPU, MB of gradients.
HOROVOD_RESNET = .90, 219., 102.
HOROVOD_VGG = .68, 154., 553.


def predict_left_out(rates: Rates) -> List[Tuple[int, int, float, Prediction]]:
  """Predicts the figures with the most GPUs from the others.

  Returns:
    For each batch size: the number of GPUs, the images per GPU, the published rate and the
    prediction.
  """
  most = max(gpus for by_gpus in rates.values() for gpus in by_gpus)
  model = fit([
      Observation(gpus, images, gpus * images / rate)
      for images, by_gpus in rates.items() for gpus, rate in by_gpus.items() if gpus < most])
  assert model is not None
  return [(most, images, by_gpus[most], model.predict(most, images))
          for images, by_gpus in rates.items()]


def predict_vgg_with_horovod() -> float:
  """Returns the efficiency of VGG-16, predicted from that of ResNet-50."""
  efficiency, rate, megabytes = HOROVOD_RESNET
  secs_per_megabyte = (1 / efficiency - 1) * 64 / rate / megabytes
  _, rate, megabytes = HOROVOD_VGG
  return 1 / (1 + secs_per_megabyte * megabytes * rate / 64)


def main() -> None:
  """Prints the predictions next to the published figures."""
  print('| machine | model | images per GPU | GPUs | published images/sec | predicted | 90 % '
        'interval | error |\n|---|---|---|---|---|---|---|---|')
  errors, inside = [], 0
  for (machine, name), rates in PUBLISHED.items():
    for gpus, images, published, prediction in predict_left_out(rates):
      rate, low, high = (gpus * images / secs for secs in (
          prediction.secs, prediction.high, prediction.low))
      errors.append(rate / published - 1)
      inside += low <= published <= high
      print('| {} | {} | {} | {} | {:,.0f} | {:,.0f} | {:,.0f} to {:,.0f} | {:+.1%} |'.format(
          machine, name, images, gpus, published, rate, low, high, errors[-1]))
  vgg = predict_vgg_with_horovod()
  print('| 512 P100, Horovod | VGG-16 | 64 | 512 | efficiency {:.0%} | {:.0%} | | {:+.1%} |'.format(
      HOROVOD_VGG[0], vgg, vgg / HOROVOD_VGG[0] - 1))
  absolute = sorted(abs(error) for error in errors)
  print('median error {:.1%}, largest {:.1%}; the interval has {} of {} published figures'.format(
      absolute[len(absolute) // 2], absolute[-1], inside, len(errors)))


if __name__ == '__main__':
  main()
