"""Lists the allowed values of flags, and the subsets of these values that share a rule."""

from typing import Any, Dict

MODES = ('train_and_evaluate', 'train', 'evaluate', 'predict', 'export', 'input_benchmark', 'audit',
         'write_tfrecords', 'download', 'doctor', 'scaling', 'lr_finder', 'reproduce', 'report')
TRAINING_MODES = ('train_and_evaluate', 'train')
# Flags that do not change what is computed: they may differ between tasks and between starts.
OUTPUT_FLAGS = ('hooks', 'json', 'verbosity')
MODES_WITHOUT_MODEL_DIR = ('download', 'input_benchmark', 'doctor', 'write_tfrecords')
# These modes read all splits whose patterns are given.
MODES_OF_ALL_SPLITS = ('audit', 'write_tfrecords')
DATASETS = ('fashion_mnist_sample', 'fashion_mnist', 'mnist', 'cifar10', 'oct2017', 'image_folder',
            'tfrecord', 'synthetic')
# PACKAGE_MODELS are functions of models/__init__.py, KERAS_MODELS those of tf.keras.applications.
PACKAGE_MODELS = ('fashion_cnn', 'mnist_conv8', 'mnist_deep', 'mnist_dense', 'mnist_practical')
KERAS_MODELS = (
    'vgg16', 'vgg19', 'resnet50', 'resnet101', 'resnet152', 'resnet50v2', 'resnet101v2',
    'resnet152v2', 'inceptionv3', 'inceptionresnetv2', 'xception', 'mobilenet', 'mobilenetv2',
    'densenet121', 'densenet169', 'densenet201', 'nasnetmobile', 'nasnetlarge')
MODELS = PACKAGE_MODELS + KERAS_MODELS
# By the value of --optimizer: the class, of Keras or of training/optimizers.py, and its arguments.
# Its name in checkpoints is that of the class, unless `name` is given.
OPTIMIZERS: Dict[str, Dict[str, Any]] = {
    'adam': {'class': 'Adam'},
    'adamw': {'class': 'AdamW'},
    'sgd': {'class': 'SGD'},
    'momentum': {'class': 'SGD', 'name': 'Momentum', 'momentum': 0.9},
    'rmsprop': {'class': 'RMSprop'},
    'lars': {'class': 'Lars'},
    'lamb': {'class': 'Lamb'},
}
STRATEGIES = ('off', 'one_device', 'mirrored', 'central_storage', 'multi_worker_mirrored',
              'parameter_server', 'horovod')
MULTI_WORKER_STRATEGIES = ('multi_worker_mirrored', 'parameter_server', 'horovod')
ALL_REDUCE_ALGORITHMS = ('nccl', 'ring', 'hierarchical_copy', 'reduction_to_one_device')
# These algorithms work only on one machine.
SINGLE_HOST_ALL_REDUCE = ('hierarchical_copy', 'reduction_to_one_device')
# This algorithm works only between workers.
MULTI_WORKER_ALL_REDUCE = ('ring',)
AUGMENTATIONS = ('flip', 'crop', 'pad_crop', 'color', 'rotate', 'cutout')
CACHES = ('auto', 'none', 'memory')  # Any other value is the path of a folder.
NAMED_CHECKPOINTS = ('latest', 'best')  # Any other value of --checkpoint is a path.
MODES_WITH_CHECKPOINT_FLAG = ('evaluate', 'predict', 'export')
# These strategies have one replica in each process.
SINGLE_REPLICA_STRATEGIES = ('off', 'one_device', 'horovod')
