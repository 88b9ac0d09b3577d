"""Works around defects of TensorFlow 1.15.0, and contains all uses of TensorFlow's private names.

Each function or class is one workaround. Its docstring describes the defect, where the defect is,
and the symptom. These modules import no other package of estimator_train. In the following list,
locations with (E) are relative to tensorflow_estimator/python/estimator/, and all other locations
to tensorflow_core/python/. `test` names the file of the test that covers the entry. Text in
parentheses after `defect:` does not describe a defect: the text states which public function or
attribute TensorFlow lacks, which other function uses this function, or how the workaround works.

- `central_storage.make_strategy`
    defect: AggregatingVariable hides `trainable` and initial values
    location: distribute/values.py:1489
    symptom: no layer can be built; training starts from random weights
    test: tests/training/test_exactness.py
- `central_storage.forward_attributes`
    defect: (used by `make_strategy`, and by `convert` for strategies that users have made)
    test: tests/training/test_drop_in.py
- `checkpoint_hook.CheckpointHook`
    defect: the graph is written three times; the save interval starts at the run's first step
    location: training/basic_session_run_hooks.py:570
    symptom: slow start; a resumed run saves at other steps than an uninterrupted run
    test: tests/training/checkpoints/test_save_hook.py
- `checkpoint_hook.MonotonicTimer`
    defect: intervals in seconds are measured by the system clock
    location: training/basic_session_run_hooks.py:132
    symptom: no checkpoint is saved for the time by which the clock was set back
    test: tests/training/checkpoints/test_save_hook.py
- `configurations.by_reference`, `configurations.copy_layer`
    defect: configurations contain functions and objects by name; a Lambda changes Keras's globals
    location: keras/models.py:57, keras/layers/core.py:889
    symptom: unknown or wrong functions, lost arguments, later layers fail
    test: tests/training/test_drop_in.py
- `configurations.copy_optimizer`, `configurations.copy_metrics`
    defect: only the configurations of optimizers and of metrics in flat lists are copied
    location: keras/models.py:665, keras/metrics.py:2825
    symptom: arguments are lost; metrics in nested lists belong to another graph
    test: tests/training/test_drop_in.py
- `configurations.nested_layers`, `configurations.config_of`, `configurations.is_of_library`,
  `configurations.names_in_code`, `configurations.is_equal`
    defect: (used by the previous entries and by `model_copies.ModelCopier`)
    test: tests/training/test_drop_in.py
- `control_inputs.run_before`
    defect: (no public function adds control inputs to existing operations)
    location: framework/ops.py:2089
    symptom: with a single thread the measured wait for input includes the time of the model
    test: tests/training/hooks/test_input_wait.py
- `control_inputs.is_in_control_flow`
    defect: (no public function returns the condition or loop of an operation)
    test: tests/training/hooks/test_time_history_sessions.py
- `converter_command.converter_on_path`
    defect: the command `toco_from_protos` is searched for in PATH only
    location: ../lite/python/convert.py:49
    symptom: the command is not found, or the command of another TensorFlow runs
    test: tests/tf_patches/test_tf_patches.py
- `convolution.pad_filter_gradients`
    defect: the oneDNN build pads single-channel images to eight channels on processors with AVX2
    location: jit_avx2_conv_kernel_f32.cpp of MKL-DNN 0.20.3
    symptom: the gradient of the filters of the first layer is several times slower than needed
    test: tests/tf_patches/test_convolution.py
- `deprecation.without_checks`
    defect: a function with a deprecated argument inspects its own signature at each call
    location: util/deprecation.py:480
    symptom: a tenth of the time in which a graph is built
    test: tests/tf_patches/test_tf_patches.py
- `devices.gpu_descriptions`
    defect: (no public function returns the compute capability)
    location: client/device_lib.py:25
    symptom: no warning that an older GPU computes in float32
    test: tests/training/test_mixed_precision.py
- `estimator.without_nan_hook`
    defect: `Estimator.train` always adds a NanTensorHook
    location: estimator.py:1381 (E)
    symptom: the run ends at a step that loss scaling would skip
    test: tests/training/hooks/test_finite.py
- `estimator.keep_loss_unscaled`
    defect: the loss is divided by the number of replicas twice
    location: estimator.py:1244 (E)
    symptom: `tf.train` optimizers update the weights by too little
    test: tests/tf_patches/test_tf_patches.py
- `estimator.complete_config`
    defect: (no public function combines `model_dir` and RunConfig)
    location: estimator.py:1784 (E)
    test: tests/training/test_drop_in.py
- `estimator.release_server`
    defect: the server is kept in a thread-local variable
    location: distribute/distribute_coordinator.py:450
    symptom: an exception is printed at exit
    test: tests/tf_patches/test_tf_patches.py
- `estimator.open_event_file`
    defect: a new FileWriter writes the graph, which is not complete yet
    location: summary/writer/writer_cache.py:62
    symptom: an incomplete graph in the event file
    test: tests/tf_patches/test_tf_patches.py
- `estimator.remove_loss_summary`
    defect: no setting disables Estimator's own loss summary
    location: estimator.py:1377 (E)
    symptom: two loss curves in TensorBoard
    test: tests/tf_patches/test_tf_patches.py
- `gradient_sums.sum_before_changes`
    defect: gradients are clipped before they are summed over the replicas
    location: keras/optimizer_v2/optimizer_v2.py:473, training/optimizer.py:672
    symptom: with clipping, N replicas do not train like one
    test: tests/training/test_drop_in.py
- `horovod_strategy.HorovodStrategy`
    defect: (no public class from which a strategy for several processes can be derived)
    test: tests/cluster/test_horovod.py
- `horovod_strategy.broadcast_variables`
    defect: (TensorFlow refuses assignments of Horovod's function outside of the strategy)
    test: tests/cluster/test_horovod.py
- `keras.preserve_session`
    defect: the function that returns Keras's session makes a session if there is none
    location: keras/backend.py:95
    symptom: a user's model loses its weights
    test: tests/tf_patches/test_tf_patches.py
- `keras.ensure_session`
    defect: Keras makes its session with default options
    location: keras/backend.py:454
    symptom: GPU options of a RunConfig have no effect
    test: tests/training/test_drop_in.py
- `keras.has_values`
    defect: (no public function returns whether a model has been used)
    test: tests/training/test_drop_in.py
- `keras.BatchNormalization`
    defect: a frozen layer uses the statistics of the batch
    location: keras/layers/normalization.py:633
    symptom: wrong features of frozen layers
    test: tests/models/test_models.py
- `keras.source_layers`
    defect: (no public attribute refers to the layer of a tensor)
    location: keras/engine/base_layer_utils.py:159
    symptom: a network cannot be split into two models
    test: tests/training/test_frozen_features.py
- `keras.is_graph_network`
    defect: (no public attribute identifies subclassed models)
    location: keras/engine/network.py:276
    test: tests/training/test_drop_in.py
- `loss_scaling.LossScalingOptimizer`
    defect: LossScaleOptimizer has no `get_config`
    location: keras/mixed_precision/experimental/loss_scale_optimizer.py:47
    symptom: the model cannot be converted to an Estimator
    test: tests/training/test_mixed_precision.py
- `model_copies.ModelCopier`
    defect: Keras copies a layer by its class and the result of `get_config`
    location: keras/models.py:57, 441
    symptom: arguments, attributes, losses, second uses and sharing of layers are lost
    test: tests/training/test_drop_in.py
- `model_to_estimator.build_model`, `model_to_estimator.compile_copy`,
  `model_to_estimator.get_optimizer_config`
    defect: the name of an output is prefixed twice (otherwise, what keras.py:181 (E) does)
    test: tests/training/test_drop_in.py
- `model_to_estimator.output_names`
    defect: the names of the outputs differ between replicas
    location: keras.py:290 (E)
    symptom: predictions of replicas cannot be grouped
    test: tests/training/test_drop_in.py
- `model_to_estimator.hyperparameter_names`
    defect: (no public attribute names the hyperparameters of an optimizer)
    test: tests/training/test_drop_in.py
- `model_to_estimator.make_train_op`
    defect: (no public function makes the training function)
    test: tests/training/test_drop_in.py
- `model_to_estimator.make_metrics`
    defect: only the first update of a metric is run
    location: model_fn.py:515 (E)
    symptom: `weighted_metrics` ignore the sample weights
    test: tests/training/test_drop_in.py
- `model_to_estimator.make_object_saver`
    defect: five object-based checkpoints are kept
    location: keras.py:345 (E)
    symptom: `keep_checkpoint_max` has no effect
    test: tests/training/test_drop_in.py
- `model_to_estimator.weight_shapes`
    defect: (used by `convert`, in training/drop_in.py)
    test: tests/training/test_drop_in.py
- `model_to_estimator.register_schedules`
    defect: the optimizer is deserialized without custom objects
    location: keras/models.py:665
    symptom: `Unknown decay: Cosine`
    test: tests/tf_patches/test_tf_patches.py
- `model_to_estimator.add_optimizer_base_class`
    defect: only the optimizer's class and configuration are copied (a class survives the copy, so
      methods are added as a base class)
    location: keras/models.py:665
    symptom: methods that were replaced on the optimizer object are lost
    test: tests/training/hooks/test_summaries.py
- `multi_worker_mirrored.make_strategy`
    defect: (makes the `MultiWorkerMirroredStrategy` of the next entry)
    test: tests/cluster/test_workers.py
- `multi_worker_mirrored.MultiWorkerMirroredStrategy`
    defect: the strategy uses all GPUs, or one CPU device
    location: distribute/collective_all_reduce_strategy.py:277
    symptom: `--num_gpus` has no effect
    test: tests/cluster/test_workers.py
- `replicated_variables.SingleCopySaver`
    defect: the slots of all replicas are saved, and the learning rate is restored
    location: estimator.py:1394 (E)
    symptom: a run cannot resume on another number of replicas; a resumed run uses the learning
      rate in the checkpoint instead of the rate that the flags give
    test: tests/training/checkpoints/test_save_hook.py
- `replicated_variables.average_statistics`
    defect: saving averages the statistics of batch normalization by a collective operation, in
      which only the chief takes part
    location: distribute/values.py:1242
    symptom: under MultiWorkerMirroredStrategy, the first checkpoint hangs
    test: tests/cluster/test_workers.py, tests/cluster/test_converted_models.py
- `replicated_variables.variable_name`
    defect: `op` of a replicated variable converts a stack trace
    location: distribute/values.py:761
    symptom: half a millisecond for each name of a variable
    test: tests/tf_patches/test_tf_patches.py
- `replicated_variables.single_copy_variables`
    defect: (used by `SingleCopySaver`)
    test: tests/training/checkpoints/test_save_hook.py
- `saved_weights.initial_weights_path`
    defect: (no public name for the path)
    location: keras.py:406 (E)
    test: tests/training/checkpoints/test_initial_weights.py
- `saved_weights.save_initial_weights`
    defect: existing initial weights are reused
    location: keras.py:370 (E)
    symptom: the weights of a new model are ignored
    test: tests/training/test_drop_in.py
- `saved_weights.start_graph`, `saved_weights.random_weights`
    defect: (used by `save_initial_weights`, `save_random_weights` and `convert`)
    test: tests/tf_patches/test_tf_patches.py
- `saved_weights.save_random_weights`
    defect: (like `save_initial_weights`, but does not build the model again)
    test: tests/tf_patches/test_tf_patches.py
- `saved_weights.PositionalWeights`
    defect: weights of subclassed models are lost (the weights have no names yet, so they are
      saved by position)
    location: keras.py:574 (E)
    symptom: training starts from random weights
    test: tests/training/test_drop_in.py
- `saved_weights.warm_start_settings`
    defect: only trainable weights are warm-started
    location: training/warm_starting_util.py:341
    symptom: frozen weights start from random values
    test: tests/training/checkpoints/test_initial_weights.py
- `saver.SingleReadSaverBuilder`
    defect: each variable is read once more, only to find its device
    location: training/saver.py:404
    symptom: a fifth of the operations of a Saver are never run
    test: tests/tf_patches/test_tf_patches.py
- `saver.checkpoint_list_restorer`
    defect: a checkpoint that could not be saved stays in the Saver's list
    location: training/saver.py:930
    symptom: a good checkpoint is deleted
    test: tests/tf_patches/test_tf_patches.py
- `saver.delete_surplus_checkpoints`
    defect: a Saver deletes at most one checkpoint after each save
    location: training/saver.py:933
    symptom: too many checkpoints are kept
    test: tests/training/checkpoints/test_save_hook.py
- `saver.write_checkpoint_state`
    defect: (the public function has no `save_relative_paths`)
    location: training/checkpoint_management.py:129
    symptom: a run in a moved folder cannot resume
    test: tests/tf_patches/test_tf_patches.py
- `session_runs.SessionRunTimer`
    defect: Estimator's hooks are called before the user's hooks
    location: training/monitored_session.py:544
    symptom: saving and evaluating a checkpoint count as part of a step
    test: tests/training/hooks/test_time_history.py
- `session_runs.has_trained`
    defect: (no public function returns the number of sessions)
    location: client/session.py:47
    test: tests/training/hooks/test_time_history_sessions.py
- `session_start.add_local_init_op`
    defect: (no public function adds an operation to the start of a session)
    location: training/monitored_session.py:221
    test: tests/tf_patches/test_tf_patches.py
- `session_start.share_ready_op`
    defect: two equal checks of a new session have different operations
    location: training/monitored_session.py:203
    symptom: the graph is optimized once more before the first step
    test: tests/tf_patches/test_tf_patches.py
- `session_start.read_global_step`
    defect: (no public function returns the tensor by which hooks read the global step)
    location: training/training_util.py:34
    test: tests/tf_patches/test_tf_patches.py
- `trace.chrome_trace`
    defect: (no public function makes a Chrome trace)
    location: client/timeline.py:346
    symptom: no trace can be written
    test: tests/training/hooks/test_trace.py
- `training_endpoints.OutputLoss`
    defect: (returned by `output_losses`)
    test: tests/training/evaluation/test_metrics_of_any_model.py
- `training_endpoints.output_losses`
    defect: (no public attribute of a compiled model contains the loss of each example)
    location: keras/engine/training.py:1671
    test: tests/training/evaluation/test_metrics_of_any_model.py
- `training_endpoints.regularization_losses`
    defect: (the public `model.losses` also contains losses of other copies of shared layers)
    location: keras/engine/training.py:1738
    test: tests/training/evaluation/test_metrics_of_any_model.py
- `training_endpoints.batch_metric_values`
    defect: a metric whose function returns one number per batch counts each batch equally
    location: keras/metrics.py:560
    symptom: the metric depends on the batch size if the last batch is short
    test: tests/training/evaluation/test_metrics_of_any_model.py
- `training_endpoints.scalar_losses`
    defect: (used to warn of losses that replicas cannot compute exactly)
    test: tests/training/test_unusual_models.py
- `training_endpoints.loss_functions`, `training_endpoints.takes_labels_like_outputs`,
  `training_endpoints.takes_one_hot`
    defect: (no public function returns the loss of each output, or what it takes)
    test: tests/training/test_drop_in.py
- `xla.compile_for_cpus`
    defect: XLA compiles for GPUs only
    location: tensorflow/compiler/jit/flags.cc (C++)
    symptom: `--enable_xla` has no effect on CPUs
    test: tests/training/test_mixed_precision.py
"""
