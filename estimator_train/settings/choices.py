"""The words that flags choose from."""

from estimator_train.configs.workloads import WORKLOADS

MODES = ('train_and_evaluate', 'train', 'evaluate', 'predict', 'export', 'input_benchmark', 'audit',
         'download', 'doctor', 'scaling', 'reproduce')
WITHOUT_MODEL_DIR = ('download', 'input_benchmark', 'doctor')
PREPROCESSINGS = ('unit', 'caffe', 'torch', 'tf')
EXPORT_FORMATS = ('saved_model', 'h5', 'tflite')
CLASS_WEIGHTS = ('none', 'balanced')
OPTIMIZERS = ('adam', 'sgd', 'momentum', 'rmsprop')
STRATEGIES = ('off', 'one_device', 'mirrored', 'central_storage', 'multi_worker_mirrored',
              'parameter_server')
MULTI_WORKER_STRATEGIES = ('multi_worker_mirrored', 'parameter_server')
ALL_REDUCE_ALGORITHMS = ('nccl', 'ring', 'hierarchical_copy', 'reduction_to_one_device')
IN_ONE_MACHINE, OVER_WORKERS = ('hierarchical_copy', 'reduction_to_one_device'), ('ring',)
DTYPES = ('fp32', 'mixed')
LR_SCHEDULES = ('constant', 'piecewise', 'exponential', 'cosine')
LEARNING_RATE_SCALINGS = ('none', 'linear', 'sqrt')
CACHES = ('auto', 'none', 'memory')  # Or a folder.
CACHE_FEATURES_DTYPES = ('float32', 'float16')
ON_BAD_IMAGE = ('error', 'skip')
ON_NAN = ('stop', 'skip')
SCALE_OVER = ('replicas', 'workers')
BEST_METRICS = ('accuracy', 'average_loss')
KEPT_CHECKPOINTS = ('latest', 'best')
READS_CHECKPOINT = ('evaluate', 'predict', 'export')
SINGLE_REPLICA_STRATEGIES = ('off', 'one_device')
# By their flags.
OF_FLAG = {
    'mode': MODES, 'optimizer': OPTIMIZERS, 'distribution_strategy': STRATEGIES,
    'scale_learning_rate': LEARNING_RATE_SCALINGS, 'lr_schedule': LR_SCHEDULES,
    'preprocess': PREPROCESSINGS, 'export_format': EXPORT_FORMATS, 'class_weights': CLASS_WEIGHTS,
    'cache_features_dtype': CACHE_FEATURES_DTYPES, 'on_bad_image': ON_BAD_IMAGE,
    'on_nan': ON_NAN,
    'scale_over': SCALE_OVER, 'workload': tuple(WORKLOADS), 'best_metric': BEST_METRICS,
    'all_reduce_alg': ALL_REDUCE_ALGORITHMS, 'dtype': DTYPES}
