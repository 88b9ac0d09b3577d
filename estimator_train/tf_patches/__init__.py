"""Workarounds for defects of TensorFlow 1.15.0, and all uses of its private names.

Each function or class is one workaround, and its docstring states the defect, where it is, and the
symptom. Nothing here imports anything of the package but `errors`. Locations are in
tensorflow_core/python/, those with (E) in tensorflow_estimator/python/estimator/; the test named
covers the workaround. A defect in brackets is none: what is needed has no public name.

- `central_storage.make`
    defect: AggregatingVariable hides `trainable` and initial values
    location: distribute/values.py:1489
    symptom: no layer can be built; weights begin random
    test: tests/training/test_exactness.py
- `checkpoint_hook.CheckpointHook`
    defect: the graph is written three times; steps count from the start
    location: training/basic_session_run_hooks.py:570
    symptom: slow start; other steps after a resume
    test: tests/training/checkpoints/test_save_hook.py
- `control_inputs.run_before`
    defect: (no public name for an order of operations that are there)
    location: framework/ops.py:2089
    symptom: with a single thread the wait for input includes the model
    test: tests/training/hooks/test_input_wait.py
- `converter_command.own_commands_first`
    defect: `toco_from_protos` is looked for in PATH only
    location: ../lite/python/convert.py:49
    symptom: `toco_from_protos: not found`
    test: tests/tf_patches/test_tf_patches.py
- `devices.gpu_descriptions`
    defect: (no public name for the compute capability)
    location: client/device_lib.py:25
    symptom: no warning on older GPUs
    test: tests/training/test_mixed_precision.py
- `estimator.without_nan_hook`
    defect: NanTensorHook in every training
    location: estimator.py:1381 (E)
    symptom: loss scaling ends the run at a nan
    test: tests/training/hooks/test_finite.py
- `estimator.keep_loss_unscaled`
    defect: the loss is divided by the replicas twice
    location: estimator.py:1244 (E)
    symptom: steps of `tf.train` optimizers are too short
    test: tests/tf_patches/test_tf_patches.py
- `estimator.release_server`
    defect: the server is kept in a thread-local variable
    location: distribute/distribute_coordinator.py:450
    symptom: an exception is printed at exit
    test: tests/tf_patches/test_tf_patches.py
- `estimator.open_event_file`
    defect: a new FileWriter writes the graph, unfinished
    location: summary/writer/writer_cache.py:62
    symptom: half a graph in the event file
    test: tests/tf_patches/test_tf_patches.py
- `estimator.remove_loss_summary`
    defect: a loss summary that no setting leaves out
    location: estimator.py:1377 (E)
    symptom: the loss is there twice
    test: tests/tf_patches/test_tf_patches.py
- `keras.session_restored`
    defect: no function reads Keras's session
    location: keras/backend.py:95
    symptom: a user's model loses its weights
    test: tests/tf_patches/test_tf_patches.py
- `keras.BatchNormalization`
    defect: a frozen layer uses the batch's statistics
    location: keras/layers/normalization.py:633
    symptom: wrong features of frozen layers
    test: tests/models/test_models.py
- `keras.source_layers`
    defect: (no public name for a tensor's layer)
    location: keras/engine/base_layer_utils.py:159
    symptom: a network cannot be cut
    test: tests/training/test_frozen_features.py
- `keras.is_graph_network`
    defect: weights of subclassed models are lost
    location: keras.py:574 (E)
    symptom: training begins with random weights
    test: tests/test_api.py
- `loss_scaling.LossScaled`
    defect: LossScaleOptimizer has no configuration
    location: keras/mixed_precision/experimental/loss_scale_optimizer.py:47
    symptom: the model cannot be converted
    test: tests/training/test_mixed_precision.py
- `model_to_estimator.initial_weights_path`
    defect: (the path is not public)
    location: keras.py:406 (E)
    test: tests/training/checkpoints/test_initial_weights.py
- `model_to_estimator.clear_initial_weights`
    defect: old initial weights are taken
    location: keras.py:370 (E)
    symptom: new weights are ignored
    test: tests/training/checkpoints/test_save_hook.py
- `model_to_estimator.with_all_weights`
    defect: only trainable weights are warm-started
    location: training/warm_starting_util.py:341
    symptom: frozen weights begin random
    test: tests/training/checkpoints/test_initial_weights.py
- `model_to_estimator.register_schedules`
    defect: no custom objects for the optimizer
    location: keras/models.py:665
    symptom: `Unknown decay: Cosine`
    test: tests/tf_patches/test_tf_patches.py
- `model_to_estimator.add_base_class`
    defect: the optimizer is made again from its class
    location: keras/models.py:665
    symptom: what wraps the instance is lost
    test: tests/training/hooks/test_summaries.py
- `multi_worker_mirrored.make`
    defect: makes the class below
    test: tests/cluster/test_workers.py
- `multi_worker_mirrored.MultiWorkerMirroredStrategy`
    defect: takes every GPU, or one CPU device
    location: distribute/collective_all_reduce_strategy.py:277
    symptom: `--num_gpus` has no effect
    test: tests/cluster/test_workers.py
- `replicated_variables.OneCopyOfEach`
    defect: slots of all replicas and the learning rate are saved
    location: estimator.py:1394 (E)
    symptom: no resume on other devices
    test: tests/tf_patches/test_tf_patches.py (rate), tests/training/checkpoints/test_save_hook.py
- `replicated_variables.one_copy_of_each`
    defect: used by the class above
    test: tests/training/checkpoints/test_save_hook.py
- `saver.retention`
    defect: a failed attempt counts as a checkpoint
    location: training/saver.py:930
    symptom: a good checkpoint is deleted
    test: tests/tf_patches/test_tf_patches.py
- `saver.delete_surplus`
    defect: one checkpoint is deleted for each saved
    location: training/saver.py:933
    symptom: too many checkpoints stay
    test: tests/training/checkpoints/test_save_hook.py
- `saver.write_checkpoint_state`
    defect: no public `save_relative_paths`
    location: training/checkpoint_management.py:129
    symptom: a moved folder does not resume
    test: tests/tf_patches/test_tf_patches.py
- `trace.chrome_trace`
    defect: (no public name)
    location: client/timeline.py:346
    symptom: no trace
    test: tests/training/hooks/test_trace.py
- `xla.compile_for_cpus`
    defect: XLA compiles for GPUs only
    location: tensorflow/compiler/jit/flags.cc (C++)
    symptom: `--enable_xla` has no effect on CPUs
    test: tests/training/test_mixed_precision.py
"""
