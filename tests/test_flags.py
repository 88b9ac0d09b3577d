"""The command line to Settings, and every way to get it wrong."""

import pytest
from hypothesis import given, settings, strategies as st

from estimator_train import flags, settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.settings.flag import all_flags

ENOUGH = ['--model_dir=somewhere', '--train_steps=10']


@pytest.mark.parametrize('before', [True, False])
def test_flags_of_the_command_line_win_over_a_flagfile(tmp_path, before):
  flagfile = tmp_path / 'some.flags'
  flagfile.write_text('# a comment\n--batch_size=64\n--learning_rate=0.5\n--image_size=30,40\n'
                      '--dataset=synthetic\n')
  arguments = ['--flagfile={}'.format(flagfile), '--batch_size', '32']
  settings = flags.parse(ENOUGH + (arguments[1:] + arguments[:1] if before else arguments))
  assert (settings.batch_size, settings.learning_rate, settings.image_size) == (32, 0.5, (30, 40))


def test_the_flags_of_a_run_serve_another_mode(tmp_path):
  flagfile = tmp_path / 'flags.txt'
  flagfile.write_text(settings_lib.to_flagfile(flags.parse(ENOUGH)))
  settings = flags.parse(['--mode=predict', '--input=x.png', '--flagfile={}'.format(flagfile)])
  assert (settings.mode, settings.input, settings.train_steps) == ('predict', 'x.png', 10)


@pytest.mark.parametrize('in_flagfile, after_it, steps, epochs', [
    ('--train_epochs=3', '--train_steps=7', 7, None),
    ('--train_steps=7', '--train_epochs=3', None, 3),
    ('--train_steps=7', '--batch_size=1', 7, None),
])
def test_length_of_the_command_line_wins(tmp_path, in_flagfile, after_it, steps, epochs):
  flagfile = tmp_path / 'some.flags'
  flagfile.write_text(in_flagfile + '\n--model_dir=x\n')
  settings = flags.parse(['--flagfile={}'.format(flagfile), after_it])
  assert (settings.train_steps, settings.train_epochs) == (steps, epochs)


@pytest.mark.parametrize('rate, epochs', [
    ([], '--train_steps=9'), (['--learning_rate=0.5'], '--train_epochs=9')])
def test_rates_that_agree(rate, epochs):
  settings = flags.parse(['--model_dir=x', epochs, '--lr_values=.5,2,0', '--lr_warmup_epochs=3']
                         + PIECEWISE + rate)
  assert (settings.lr_boundaries_epochs, settings.lr_values) == ((3, 7), (.5, 2, 0))


def test_parsing_has_no_memory():
  flags.parse(ENOUGH + ['--batch_size=64'])
  assert flags.parse(ENOUGH).batch_size == all_flags()['batch_size'].default


@pytest.mark.parametrize('arguments', [
    pytest.param(ENOUGH, id='defaults'),
    pytest.param(ENOUGH + ['--dataset=oct2017', '--image_size=30,40', '--nogpu_memory_growth',
                           '--num_gpus=0', '--learning_rate=1e-05', '--save_checkpoints_steps=7',
                           '--trace_steps=3:4', '--lr_schedule=piecewise',
                           '--lr_boundaries_epochs=.1,7', '--lr_values=1e-05,0,1e-300'],
                 id='all kinds'),
    pytest.param(['--model_dir=with blank', '--train_epochs=3', '--data_dir=a=b'], id='odd paths'),
    pytest.param(ENOUGH + ['--dataset=image_folder', '--labels="a, b",c"d,é',
                           '--train_pattern=*/[ab]/\'"#.jpeg'],
                 id='odd labels'),
])
def test_settings_replay(tmp_path, arguments):
  settings = flags.parse(arguments)
  assert flags.parse(settings_lib.to_arguments(settings)) == settings
  flagfile = tmp_path / 'flags.txt'
  flagfile.write_text(settings_lib.to_flagfile(settings))
  assert flags.parse(['--flagfile={}'.format(flagfile)]) == settings


def test_arguments_are_those_off_their_defaults():
  settings = flags.parse(ENOUGH + ['--batch_size=128', '--nogpu_memory_growth', '--labels=a,"b,c"',
                                   '--dataset=synthetic'])
  assert sorted(settings_lib.to_arguments(settings)) == [
      '--dataset=synthetic', '--gpu_memory_growth=false', '--labels=a,"b,c"',
      '--model_dir=somewhere', '--train_steps=10']


def test_flagfile_has_every_flag():
  text = settings_lib.to_flagfile(flags.parse(ENOUGH))
  for name in all_flags():
    assert '--{}'.format(name) in text


@pytest.mark.parametrize('word, names', [
    ('bad_image', ['--on_bad_image', '--max_bad_images']), ('MOBILENETV2', ['--model']),
    ('home', None), ('', None)])
def test_help_searches_for_a_word(word, names):
  assert flags.wants_help(['--help=' + word]) == bool(word)
  if names is None:
    with pytest.raises(UserError):
      print(flags.help_text(['--help=' + word]) if word else flags.parse(['--help=']))
    return
  lines = flags.help_text(['--help=' + word]).splitlines()
  assert {line.strip().partition(':')[0] for line in lines} >= set(names) and len(lines) < 10
  assert all(word.lower() in line.lower() for line in lines)


def test_help_explains_every_flag():
  for name in all_flags():
    assert '\n  --{}: '.format(name) in flags.help_text()


PIECEWISE = ['--lr_schedule=piecewise', '--lr_boundaries_epochs=3,7']

# (arguments, what the message must say). Each flag has its line, or several.
BAD = [
    (['--mode=predicted'], '--mode has no such choice: --mode=predicted: choose from train_and'),
    (['--dataset=mnst'], '--dataset has no such choice: --dataset=mnst: choose from'),
    (['--dataset=a:\nb'], '--dataset has a line break'),
    (['--data_dir=a\nb'], '--data_dir has a line break'),
    (['--image_size=28'], '--image_size must be height,width in pixels: --image_size=28: '),
    (['--image_size=28,x'], '--image_size must be height,width in pixels: --image_size=28,x: '),
    (['--image_size=28,28,3'], '--image_size must be height,width in pixels: .*=28,28,3: '),
    (['--image_size=28,28,3,1', '--dataset=synthetic'], '--image_size must be height,width'),
    (['--image_size=28,0'], '--image_size must be height,width in pixels: --image_size=28,0: '),
    (['--model=resnet'], '--model has no such choice: --model=resnet: choose from fashion_cnn'),
    (['--weights='], '--weights is empty'),
    (['--scale_learning_rate=cubic'], '--scale_learning_rate has no such choice: .*none, linear'),
    (['--base_batch_size=0'], '--base_batch_size is out of range'),
    (['--lr_schedule=linear'], '--lr_schedule has no such choice: .*: choose from constant, piec'),
    (['--lr_values=0.1,x'], '--lr_values must be numbers: --lr_values=0.1,x: '),
    (['--lr_values=0.1'], '--lr_schedule=constant takes no --lr_values: --lr_values=0.1: omit'),
    (['--lr_boundaries_epochs=3'], '--lr_schedule=constant takes no --lr_boundaries_epochs: '),
    (['--lr_schedule=piecewise'], r'takes N boundaries and N \+ 1 .*: --lr_boundaries_epochs'),
    (PIECEWISE + ['--lr_values=1e-3,1e-4'], 'learning rates: --lr_boundaries_epochs=3.0,7.0 --lr_'),
    (PIECEWISE + ['--lr_values=1,-1,1'], '--lr_values must be 0 or more, and finite: .*=1.0,-1.0,'),
    (PIECEWISE + ['--lr_values=1,nan,1'], '--lr_values must be 0 or more, and finite'),
    (PIECEWISE + ['--lr_values=1,2,3', '--learning_rate=0.5'],
     'must equal the first of --lr_values: '
     '--learning_rate=0.5 --lr_values=1.0,2.0,3.0: give --learning_rate=1.0, or omit it'),
    (PIECEWISE + ['--lr_values=1,2,3', '--lr_warmup_epochs=4'], 'must end by the first boundary: .*'
     '--lr_warmup_epochs=4.0 .*: give --lr_warmup_epochs=3.0 at most'),
    (['--lr_boundaries_epochs=7,3'],
     '--lr_boundaries_epochs must be positive and increasing: .*=7.0,3'),
    (['--lr_boundaries_epochs=0,3'], '--lr_boundaries_epochs must be positive and increasing'),
    (['--lr_boundaries_epochs=inf'], '--lr_boundaries_epochs must be positive and increasing'),
    (['--lr_schedule=exponential'], 'takes one final rate above 0: --lr_values=: '),
    (['--lr_schedule=exponential', '--lr_values=0'],
     'takes one final rate above 0: --lr_values=0.0: '),
    (['--lr_schedule=cosine', '--lr_values=1e-4,1e-5'], 'takes one final rate: --lr_'),
    (['--lr_schedule=cosine', '--lr_values=1'],
     '=cosine requires --lr_values no higher than --learn'),
    (['--lr_schedule=cosine', '--lr_boundaries_epochs=1,2'], '=cosine takes one boundary, the end'),
    (['--lr_schedule=cosine', '--lr_boundaries_epochs=1', '--lr_warmup_epochs=1'],
     'before the end of the decay: --lr_warmup_epochs=1.0 --lr_boundaries_epochs=1.0: give a'),
    (['--lr_warmup_epochs=-1'], '--lr_warmup_epochs must be from 0 to 1000000: .*=-1.0: '),
    (['--lr_warmup_epochs=nan'], '--lr_warmup_epochs must be from 0 to 1000000'),
    (['--train_pattern=a\nb'], '--train_pattern has a line break'),
    (['--eval_pattern=a\0b'], '--eval_pattern has a line break or a null'),
    (['--labels=a,b,a'], '--labels must be different names, none of them empty: --labels=a,b,a: '),
    (['--labels=a,,b'], '--labels must be different names, none of them empty: --labels=a,,b: '),
    (['--preprocess=zscore'], '--preprocess has no such choice: .*: choose from unit, caffe'),
    (['--trainable_layers=-1'], '--trainable_layers is out of range'),
    (['--class_weights=heavy'], '--class_weights has no such choice: .*: choose from none, bal'),
    (['--num_parallel_calls=-1'], '--num_parallel_calls is out of range'),
    (['--cache='], '--cache is empty'),
    (['--cache_features=perhaps'], '--cache_features must be true or false'),
    (['--cache_features_dtype=int8'], '--cache_features_dtype has no such choice: .*float16'),
    (['--on_bad_image=cry'], '--on_bad_image has no such choice: .*: choose from error, skip'),
    (['--on_nan=ignore'], '--on_nan has no such choice: .*: choose from stop, skip'),
    (['--on_nan=skip'],
     'requires dynamic loss scaling, .*: --on_nan=skip --dtype=fp32: give --dtype=mixed'),
    (['--max_bad_images=1.5'], '--max_bad_images must be from 0 to 1: .*=1.5: '),
    (['--max_bad_images=nan'], '--max_bad_images must be from 0 to 1: '),
    (['--model_dir='], '--model_dir is required'),
    (['--model_dir=a\0b'], '--model_dir has a line break or a null'),
    (['--export_dir=a\nb'], '--export_dir has a line break'),
    (['--mode=export'], '--mode=export requires --export_dir: .*: give --export_dir=FOLDER'),
    (['--export_format=pmml'], '--export_format has no such choice: .*from saved_model, h5, tfl'),
    (['--train_steps=0'], '--train_steps is out of range: --train_steps=0: give an integer'),
    (['--train_steps=x'], '--train_steps must be an integer: --train_steps=x: '),
    (['--train_epochs=1'], 'exclude each other: --train_steps=10 --train_epochs=1'),
    (['--train_epochs=-1'], '--train_epochs is out of range: --train_epochs=-1: '),
    (['--eval_every_steps=0'], '--eval_every_steps is out of range'),
    (['--eval_every_steps=15', '--save_checkpoints_steps=10'],
     '--eval_every_steps must be a multiple .*: give --save_checkpoints_steps=15'),
    (['--early_stopping_steps=0'], '--early_stopping_steps is out of range'),
    (['--early_stopping_steps=5'],
     'evaluates before its end .*: --early_stopping_steps=5: give --eval_ev'),
    (['--early_stopping_steps=4', '--eval_every_steps=5'],
     'must not be less than --eval_every_steps: .*: give '
     '--early_stopping_steps=5 or more'),
    (['--stop_at_accuracy=.5', '--mode=train'], 'can stop early: --stop_at_accuracy=0.5 --mode'),
    (['--stop_at_accuracy=0'],
     '--stop_at_accuracy must be above 0 .*: --stop_at_accuracy=0.0: give'),
    (['--stop_at_accuracy=95'], '--stop_at_accuracy must be above 0 and at most 1'),
    (['--stop_at_accuracy=nan'], '--stop_at_accuracy must be above 0 and at most 1'),
    (['--best_metric='], '--best_metric is empty: .*: give a metric, or omit it'),
    (['--best_mode=most'], '--best_mode has no such choice: .*: choose from auto, max, min'),
    (['--augment=rotate'], '--augment has no such choice: .*: choose from none, flip, crop_flip'),
    (['--augment=flip', '--cache=memory'],
     '--augment does not support --cache: --augment=flip with'),
    (['--augment=flip', '--cache_features'], '--augment does not support --cache_features'),
    (['--augment=flip', '--input_pipeline=published'],
     '--augment does not support --input_pipeline=published'),
    (['--weight_decay=-1'], '--weight_decay must be from 0 to 1000000: --weight_decay=-1.0'),
    (['--label_smoothing=1'], '--label_smoothing must be at least 0 and below 1'),
    (['--checkpoint='], '--checkpoint is empty'),
    (['--checkpoint=best'], '--checkpoint is only for --mode=evaluate, .* resumes from the latest'),
    (['--checkpoint=best', '--mode=doctor'],
     '--checkpoint is only for --mode=evaluate, .*: omit it'),
    (['--checkpoint=a\nb', '--mode=evaluate'], '--checkpoint has a line break'),
    (['--eval_every_steps=5', '--save_checkpoints_secs=5'], 'omit --save_checkpoints_secs'),
    (['--batch_size=0'], '--batch_size is out of range: --batch_size=0: '),
    (['--batch_size=1.5'], '--batch_size must be an integer: --batch_size=1.5: '),
    (['--batch_size=99999999999'], '--batch_size is out of range'),
    (['--optimizer=adamw'], '--optimizer has no such choice: .*: choose from adam, sgd, momentum'),
    (['--learning_rate=0'], '--learning_rate must be positive and finite: --learning_rate=0.0: '),
    (['--learning_rate=inf'], '--learning_rate must be positive and finite'),
    (['--learning_rate=fast'], '--learning_rate must be a number: --learning_rate=fast: '),
    (['--seed=-1'], '--seed is out of range'),
    (['--seed=1e3'], '--seed must be an integer: --seed=1e3: '),
    (['--distribution_strategy=ring'], '--distribution_strategy has no such choice'),
    (['--distribution_strategy=horovod', '--all_reduce_alg=ring'],
     'Horovod chooses its own all-reduce algorithm: .*: omit --all_reduce_alg'),
    (['--num_gpus=-2'], '--num_gpus is out of range: --num_gpus=-2: '),
    (['--num_gpus=2', '--distribution_strategy=off'], '--distribution_strategy=off has one repl'),
    (['--num_gpus=1', '--num_cpu_replicas=2'], 'uses GPUs or CPU replicas, not both'),
    (['--num_cpu_replicas=-1'], '--num_cpu_replicas is out of range'),
    (['--num_cpu_replicas=2', '--distribution_strategy=one_device'], 'one_device has one replica'),
    (['--all_reduce_alg=rings'], '--all_reduce_alg has no such choice'),
    (['--all_reduce_alg=ring'],
     '=mirrored does not support this --all_reduce_alg: --all_reduce_alg=ring'),
    (['--all_reduce_alg=hierarchical_copy', '--distribution_strategy=multi_worker_mirrored'],
     'does not support .*: --all_reduce_alg=hierarchical_copy: choose from nccl, ring'),
    (['--num_packs=0'], '--num_packs is out of range'),
    (['--gpu_memory_growth=maybe'], '--gpu_memory_growth must be true or false: .*=maybe: '),
    (['--dtype=fp16'], '--dtype has no such choice: --dtype=fp16: choose from fp32, mixed'),
    (['--enable_xla', '--num_cpu_replicas=2'], 'mirrored over logical CPU devices: .*: omit one'),
    (['--enable_xla=perhaps'], '--enable_xla must be true or false'),
    (['--inter_op_parallelism_threads=-1'], '--inter_op_parallelism_threads is out of range'),
    (['--intra_op_parallelism_threads=-1'], '--intra_op_parallelism_threads is out of range'),
    (['--shuffle_buffer=0'], '--shuffle_buffer is out of range'),
    (['--prefetch=0'], '--prefetch is out of range'),
    (['--throughput_warmup_steps=-1'], '--throughput_warmup_steps is out of range'),
    (['--trace_steps=5'],
     '--trace_steps must be first:last, two steps: --trace_steps=5: give steps'),
    (['--trace_steps=a:b'], '--trace_steps must be first:last, two steps'),
    (['--trace_steps=0:5'], '--trace_steps must be first:last, starting from 1, at most 1000'),
    (['--trace_steps=6:5'], '--trace_steps must be first:last, starting .*: --trace_steps=6:5: '),
    (['--trace_steps=1:1001'], '--trace_steps must be first:last, starting from 1, at most'),
    (['--workload=mnist'], '--workload has no such choice: --workload=mnist: choose from fashion'),
    (['--runs=a,b'], '--runs is only for --mode=report: --runs=a,b --mode=train_and_evaluate'),
    (['--mode=report'], '--mode=report requires --runs'),
    (['--mode=reproduce'], '--mode=reproduce requires --workload: .*: give --workload=NAME'),
    (['--mode=reproduce', '--workload=oct2017'],
     '--mode=reproduce runs a workload with its published flags: --train_steps=10: omit it'),
    (['--report_page=often'], '--report_page must be true or false'),
    (['--log_every_steps=0'], '--log_every_steps is out of range'),
    (['--repeats=0'], '--repeats is out of range: --repeats=0: '),
    (['--scale_over=hosts'], '--scale_over has no such choice: .*from replicas, workers$'),
    (['--mode=scaling'], 'requires more steps than --throughput_warmup_steps: --train_steps=10 '
     '--throughput_warmup_steps=10: give more than 10'),
    (['--mode=scaling', '--train_steps=11', '--distribution_strategy=off'],
     'strategy for several replicas: --distribution_strategy=off: give '
     '--distribution_strategy=mirrored'),
    (['--mode=scaling', '--train_steps=11', '--scale_over=workers',
      '--distribution_strategy=parameter_server'], 'requires synchronous workers: '
     '--distribution_strategy=parameter_server: give .*=multi_worker_mirrored or horovod$'),
    (['--mode=scaling', '--train_steps=11', '--scale_over=workers',
      '--all_reduce_alg=hierarchical_copy'], 'not support several workers: --scale_over=w.*: omit'),
    (['--mode=scaling', '--train_steps=11', '--cache_features'], 'synthetic images.*: omit it'),
    (['--save_checkpoints_steps=0'], '--save_checkpoints_steps is out of range'),
    (['--save_checkpoints_secs=0'], '--save_checkpoints_secs is out of range'),
    (['--save_checkpoints_steps=5', '--save_checkpoints_secs=5'],
     '_steps and --save_checkpoints_secs exclude each'),
    (['--keep_checkpoint_max=0'], '--keep_checkpoint_max is out of range'),
    (['--save_retry_secs=-1'], '--save_retry_secs is out of range: .*=-1: .* from 0 to'),
    (['--peer_timeout_secs=0'], '--peer_timeout_secs is out of range: .*=0: .* from 1 to'),
    (['--step_timeout_secs=-1'], '--step_timeout_secs is out of range: .*=-1: .* from 0 to'),
    (['--start_timeout_secs=0'], '--start_timeout_secs is out of range: .*=0: .* from 1 to'),
    (['--input=a\nb'], '--input has a line break'),
    (['--mode=predict'],
     '--mode=predict requires --input: --mode=predict without --input: give --inp'),
    (['--output='], '--output is empty: --output=: give a file, or - for standard output'),
    (['--verbosity=loud'], '--verbosity must be an integer: --verbosity=loud: '),
    (['--batchsize=3'], 'unknown flag: --batchsize: did you mean --batch_size'),
    (['--zzz'], 'unknown flag: --zzz: --help lists all flags'),
    (['--BATCH-SIZE=3'], 'unknown flag: --BATCH-SIZE: did you mean --batch_size'),
    (['--batch_size 3'], r'unknown flag: --batch_size 3: did you mean --batch_size=VALUE\?'),
    (['---batch_size=3'], 'unknown flag: ---batch_size: did you mean --batch_size'),
    (['--' + 'long' * 1000], r'unknown flag: --(long)+lo... .4002 characters. ...(long)+: --help'),
    (['--noreport_page=1'], 'takes no value: --noreport_page=1: write --report_page=true or'),
    (['--nobatch_size'], 'unknown flag: --nobatch_size: did you mean --batch_size'),
    (['--report_page', 'no'], 'an argument is not a flag: no: '),
    (['train'], 'an argument is not a flag: train: '),
    (['--flagfile=/no/such.flags'], 'the flagfile cannot be read: .*/no/such.flags'),
    (['--batch_size'], '--batch_size has no value: --batch_size: write it as --batch_size=VALUE'),
    (['--batch_size', '--seed=1'], '--batch_size has no value: --batch_size: write it as --batch_'),
    (['--data_dir', '--seed=1'], '--data_dir has no value: --data_dir: write it as --data_dir=V'),
    (['--model_dir=\udcff'], r"--model_dir is not UTF-8: --model_dir='\\udcff': use a UTF-8 name"),
    (['--data_dir= a'], "--data_dir begins or ends with whitespace: --data_dir=' a': remove it"),
    (['--labels="a,b', '--dataset=synthetic'], '--labels must be a comma-separated list'),
    (['--image_size=1\n,2'], '--image_size must be a comma-separated list'),
    (['--learning_rate=1e-50'], '--learning_rate must be positive and finite: .*=1e-50: '),
    (['--lr_warmup_epochs=1e308'], '--lr_warmup_epochs must be from 0 to 1000000: .*=1e\\+308: '),
    (['--inter_op_parallelism_threads=1001'], 'is out of range: .*=1001: .*from 0 to 1000$'),
    (['--train_pattern=a/*'], '--train_pattern is only for --dataset=image_folder or tfrecord: '
     '--train_pattern and --dataset=fashion_mnist_sample: change --dataset, or omit '
     '--train_pattern'),
    (['--labels=a,b'], '--labels is only for --dataset=image_folder or tfrecord or synthetic: '),
    (['--image_size=9,9', '--dataset=mnist'],
     '--image_size is only for --dataset=image_folder or tfrecord or oct'),
    (['--num_shards=0'], '--num_shards'),
    (['--input_pipeline=other'], '--input_pipeline'),
    (['--image_key=', '--dataset=tfrecord'], '--image_key'),
    (['--label_key=', '--dataset=tfrecord'], '--label_key'),
    (['--label_offset=x'], '--label_offset'),
    (['--label_offset=1'], '--label_offset is only for --dataset=tfrecord: '),
    (['--compression=bz2'], '--compression'),
    (['--trace_steps=11:12'],
     '--trace_steps must not start after --train_steps: .*11:12 --train_steps=10'),
]


@pytest.mark.parametrize('arguments, message', BAD, ids=[' '.join(case[0]) for case in BAD])
def test_bad(arguments, message):
  with pytest.raises(UserError, match=message) as caught:
    flags.parse(ENOUGH + arguments)
  assert '\n' not in str(caught.value)


def test_every_flag_is_given_wrongly_once():
  wrong = {argument[2:].partition('=')[0] for arguments, _ in BAD for argument in arguments}
  assert set(all_flags()) <= wrong


@pytest.mark.parametrize('arguments, message', [
    (['--model_dir=x'], 'training requires --train_steps or --train_epochs'),
    (['--mode=scaling', '--model_dir=x', '--train_epochs=1'],
     'differ in steps per epoch: --train_epochs=1: give --train_steps=N'),
    (['--train_steps=1'], '--model_dir is required'),
])
def test_left_out(arguments, message):
  with pytest.raises(UserError, match=message):
    flags.parse(arguments)


@pytest.mark.parametrize('arguments', [
    ['--mode=download', '--dataset=fashion_mnist', '--data_dir=x'],
    ['--mode=evaluate', '--model_dir=x'],
    ['--mode=export', '--model_dir=x', '--export_dir=y'],
    ['--mode=scaling', '--model_dir=x'],
])
def test_what_only_training_needs(arguments):
  assert not flags.parse(arguments).trains


# Any flag, with its kind, so that flags of later days are tried as well.
KINDS = {name: flag.value_type for name, flag in all_flags().items()}
NO_NUMBERS = ['', ' ', 'nan', 'x', '1.5', '--1', '1e3', '1 2', '1,2', '\u00bd', '\udcff']
NO_INTEGERS = NO_NUMBERS + ['inf', '-inf']


@pytest.mark.parametrize('name', [name for name in KINDS if name not in ('trace_steps',)])
def test_every_flag_of_a_wrong_type(name):
  kind = KINDS[name]
  wrong = {int: NO_INTEGERS, bool: ['', 'maybe', '2', '\udcff'],
           float: ['', ' ', 'nan', 'inf', '-inf', '1e400', 'x', '1,5', '\udcff'],
           str: ['a\nb', 'a\0b', '\udcff'], tuple: ['"a', 'a\nb', '\udcff']}
  for value in wrong[kind]:
    with pytest.raises(UserError) as caught:
      flags.parse(ENOUGH + ['--{}={}'.format(name, value)])
    text = str(caught.value)
    assert '--' + name in text and len(text.splitlines()) == 1 and text.isprintable()
  if kind is not bool:
    for arguments in (['--' + name], ['--' + name, '--seed=1'], ['--no' + name]):
      with pytest.raises(UserError, match='has no value|unknown flag') as caught:
        flags.parse(ENOUGH + arguments)
      assert name in str(caught.value)


@pytest.mark.parametrize('name', [name for name, kind in KINDS.items()
                                  if kind in (int, float)])
@pytest.mark.parametrize('value', ['-2', str(2 ** 31), str(2 ** 63), '1' + '0' * 100, '-1e-9'])
def test_every_number_out_of_range(name, value):
  if name == 'verbosity' or (KINDS[name], value) == (int, '-1e-9'):
    return
  if name == 'learning_rate' and not value.startswith('-') and float(value) <= 1e38:
    return
  with pytest.raises(UserError, match='--{}'.format(name)):
    flags.parse(ENOUGH + ['--{}={}'.format(name, value)])


@pytest.mark.parametrize('name', KINDS)
def test_every_misspelled_flag_is_proposed(name):
  for wrong in (name[:-1] + 'x', name[1:], name.replace('_', '-') + 's', name.upper() + '_'):
    if wrong in KINDS:
      continue
    with pytest.raises(UserError, match='unknown flag: --{}: .*--{}[,?]'.format(wrong, name)):
      flags.parse(ENOUGH + ['--{}=1'.format(wrong)])


TEXTS = st.text() | st.text(st.characters(whitelist_categories=('Cs', 'Cc', 'Zs'))) | (
    st.sampled_from(['0', '1', '-1', '1e999', '1,2', '3:4', 'true', 'none', '"', '--', '~', '#']))


@settings(max_examples=100, deadline=None, database=None)
@given(arguments=st.lists(st.tuples(st.sampled_from(sorted(KINDS)), TEXTS), max_size=4))
def test_any_text_gives_settings_or_a_user_error(arguments):
  try:
    parsed = flags.parse(ENOUGH + ['--{}={}'.format(*argument) for argument in arguments])
  except UserError as error:
    assert len(str(error).splitlines()) == 1 and str(error).isprintable()
  else:
    assert flags.parse(settings_lib.to_arguments(parsed)) == parsed


@settings(max_examples=100, deadline=None, database=None)
@given(arguments=st.lists(st.text(alphabet='-=: abdehilnosz"\n\0\ud800', max_size=8) | TEXTS))
def test_any_command_line_gives_settings_or_a_user_error(arguments):
  try:
    flags.parse(ENOUGH + arguments)
  except UserError as error:
    assert len(str(error).splitlines()) == 1 and str(error).isprintable()


def takes_any_text(name):
  try:
    return bool(flags.parse(ENOUGH + ['--dataset=image_folder', '--{}=some text'.format(name)]))
  except UserError:
    return False


AWKWARD = st.text(' \t\n\r\x85\u2028\ud800\0"\'#,=-é', max_size=4) | st.text(max_size=4)
VALUES = {int: st.integers(-1, 2 ** 31), bool: st.booleans(),
          float: st.floats(), str: AWKWARD}
OF_FIELDS = dict(
    {name: VALUES[kind] for name, kind in KINDS.items()
     if kind in VALUES and (kind is not str or takes_any_text(name))},
    labels=st.lists(AWKWARD, max_size=3).map(tuple),
    image_size=st.lists(st.integers(0, 40000), min_size=1, max_size=4).map(tuple),
    trace_steps=st.tuples(st.integers(0, 12), st.integers(0, 12)))


@settings(max_examples=300, deadline=None, database=None)
@given(given=st.lists(st.sampled_from(sorted(OF_FIELDS)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OF_FIELDS[name] for name in names})))
def test_any_settings_replay(tmp_path_factory, given):
  try:
    expected = settings_lib.Settings(
        **dict({'model_dir': 'x', 'train_steps': 10, 'dataset': 'image_folder'}, **given)
    ).for_mode('train_and_evaluate')
  except UserError:
    return
  flagfile = tmp_path_factory.getbasetemp() / 'any.flags'
  flagfile.write_text(settings_lib.to_flagfile(expected), encoding='utf-8')
  assert flags.parse(['--flagfile={}'.format(flagfile)]) == expected
