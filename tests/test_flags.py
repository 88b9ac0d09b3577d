"""The command line to Settings, and every way to get it wrong."""

import re

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.settings import command_line, rules
from estimator_train.settings.flag_type import all_flags

ENOUGH = ['--model_dir=somewhere', '--train_steps=10']
# Any flag, with its kind, so that flags of later days are tried as well.
KINDS = {name: flag.value_type for name, flag in all_flags().items()}


def error_of(*arguments, enough=ENOUGH):
  """Returns the error of a command line, which is one printable line; '' if there is none."""
  try:
    command_line.parse([*enough, *arguments])
  except UserError as error:
    assert len(str(error).splitlines()) == 1 and str(error).isprintable()
    return str(error)
  return ''


def test_flags_of_the_command_line_win_over_a_flagfile(tmp_path):
  flagfile = tmp_path / 'some.flags'
  flagfile.write_text('# a comment\n--batch_size=64\n--image_size=30,40\n--dataset=synthetic\n'
                      '--train_steps=7\n--model_dir=x\n')
  given = '--flagfile={}'.format(flagfile)
  for arguments in ([given, '--batch_size', '32'], ['--batch_size', '32', given]):
    found = command_line.parse(arguments)
    assert (found.batch_size, found.image_size, found.train_steps) == (32, (30, 40), 7)
  # Of two flags that exclude each other, the one of the command line wins.
  found = command_line.parse([given, '--train_epochs=3'])
  assert (found.train_steps, found.train_epochs) == (None, 3)
  # The parser has no memory.
  assert command_line.parse(ENOUGH).optimizer.batch_size == all_flags()['batch_size'].default


def test_modes_that_read_a_run_take_its_flags(tmp_path):
  run = command_line.parse([
      '--mode=train', '--model_dir=elsewhere', '--train_steps=10', '--dataset=image_folder',
      '--train_pattern=a/*', '--labels=a,b', '--batch_size=64', '--save_checkpoints_steps=5'])
  (tmp_path / 'flags.txt').write_text(settings_lib.to_flagfile(run))
  given = ['--model_dir', str(tmp_path)]
  for arguments in (['--mode=evaluate', *given], [*given, '--mode=predict', '--input=x'],
                    ['--mode', 'export', *given, '--export_dir=y']):
    found = command_line.parse(arguments)
    expected = run.evolve(mode=found.run.mode, model_dir=str(tmp_path), input=found.export.input,
                          export_dir=found.export.export_dir)
    assert found == expected
  # What is given wins, by an empty value, too.
  found = command_line.parse(['--mode=evaluate', *given, '--batch_size=32', '--labels=',
                              '--save_checkpoints_secs=9'])
  assert (found.batch_size, found.labels, found.save_checkpoints_steps) == (32, (), None)
  (tmp_path / 'epochs').write_text('--train_epochs=7\n')  # In place of --train_steps.
  found = command_line.parse(['--mode=evaluate', *given, '--flagfile={}/epochs'.format(tmp_path)])
  assert (found.train_steps, found.train_epochs, found.batch_size) == (None, 7, 64)
  with pytest.raises(UserError, match='no such choice: --model=x .{}:'.format(
      re.escape(str(tmp_path / 'flags.txt')))):
    (tmp_path / 'flags.txt').write_text('# a comment\n--model=x\n')
    command_line.parse(['--mode=evaluate', *given])
  # Training does not, if a flag is given that defines a run.
  assert not error_of('--model_dir', str(tmp_path), '--model=mnist_deep')


def test_training_continues_a_run_with_its_flags(tmp_path):
  run = command_line.parse(['--mode=train', '--model_dir=elsewhere', '--train_epochs=10',
                            '--dataset=mnist', '--data_dir=x', '--model=mnist_dense'])
  (tmp_path / 'flags.txt').write_text(settings_lib.to_flagfile(run))
  given = ['--model_dir', str(tmp_path)]
  continued = run.evolve(model_dir=str(tmp_path))
  assert command_line.parse(given) == continued
  assert command_line.parse([*given, '--train_steps=20', '--json']) == continued.evolve(
      train_epochs=None, train_steps=20, json=True)
  assert command_line.parse([*given, '--mode=train_and_evaluate']) == continued.evolve(
      mode='train_and_evaluate')
  assert command_line.parse([*given, '--nojson', '--train_steps', '20']) == continued.evolve(
      train_epochs=None, train_steps=20)
  # So do other flags that a resumed run may change; a contradiction names both origins.
  assert command_line.parse([*given, '--train_steps=20', '--batch_size=32', '--learning_rate=.1',
                             '--num_cpu_replicas=2']) == continued.evolve(
      train_epochs=None, train_steps=20, batch_size=32, learning_rate=.1, num_cpu_replicas=2)
  assert re.search(r'decay: .*--train_epochs: .*flags.txt:\d+, --lr_warmup_epochs: command line',
                   error_of('--lr_warmup_epochs=11', '--lr_schedule=cosine', enough=given))
  # A command with the data or the model is complete, as that of a new run.
  found = command_line.parse([*given, '--train_steps=20', '--model=mnist_deep'])
  assert (found.model.model, found.dataset) == ('mnist_deep', 'fashion_mnist_sample')
  (tmp_path / 'flags.txt').write_text('--mode=scaling\n--batch_size=64\n')
  assert command_line.parse([*given, '--train_steps=20']) == command_line.parse([
      *given, '--train_steps=20', '--batch_size=64'])


@pytest.mark.parametrize('mode, given, expected', [
    ('evaluate', ['batch_size', 'train_epochs', 'augment'],
     ['--train_epochs, --augment have no effect in --mode=evaluate']),
    ('predict', ['workload', 'input', 'output'], ['--workload has no effect in --mode=predict']),
    ('train', ['output', 'train_steps'], ['--output has no effect in --mode=train']),
    ('lr_finder', ['train_epochs', 'augment'], []), ('evaluate', ['input'], [])])
def test_flags_without_effect(mode, given, expected, caplog):
  rules.warn_of_flags_without_effect(mode, given)
  assert [record.getMessage() for record in caplog.records] == expected


def test_only_flags_of_the_command_line_may_be_without_effect(tmp_path):
  (tmp_path / 'shared.flags').write_text('--train_epochs=3\n--dataset=mnist\n')
  given = command_line.parse([
      '--mode=export', '--model_dir=x', '--flagfile={}/shared.flags'.format(tmp_path),
      '--seed', '3', '--nojson']).given
  assert given.names == {'mode', 'model_dir', 'seed', 'json'}


def test_flagfiles_of_the_package_and_empty_values(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))
  for name in ('mnist_8gpu', 'mnist_8gpu.flags'):
    assert command_line.parse(['--flagfile=' + name]).model.model == 'mnist_deep'
  found = command_line.parse(['--flagfile=mnist_8gpu', '--optimizer=', '--data_dir=x'])
  assert found.optimizer.optimizer == 'adam'
  assert error_of('--optimizer=').startswith('--optimizer has no such choice: --optimizer=: ')
  assert 'or one of the package' in error_of('--flagfile=mnist_9gpu')
  (tmp_path / 'mnist_8gpu').write_text('--model=vgg16\n')  # A file that is there comes first.
  assert command_line.parse(ENOUGH + ['--flagfile=mnist_8gpu']).model.model == 'vgg16'


def test_settings_replay(tmp_path):
  for arguments in (
      [], ['--data_dir=a=b', '--model_dir=with blank'],
      ['--dataset=image_folder', '--labels="a, b",c"d,é', '--train_pattern=*/[ab]/\'"#.jpeg'],
      ['--dataset=oct2017', '--image_size=30,40', '--nogpu_memory_growth', '--num_gpus=0',
       '--learning_rate=1e-05', '--save_checkpoints_steps=7', '--trace_steps=3:4',
       '--lr_schedule=piecewise', '--lr_boundaries_epochs=.1,7', '--lr_values=1e-05,0,1e-300']):
    expected = command_line.parse(ENOUGH + arguments)
    assert command_line.parse(settings_lib.to_arguments(expected)) == expected
    (tmp_path / 'flags.txt').write_text(settings_lib.to_flagfile(expected), encoding='utf-8')
    assert command_line.parse(['--flagfile={}/flags.txt'.format(tmp_path)]) == expected
  assert sorted(settings_lib.to_arguments(command_line.parse(ENOUGH + [
      '--batch_size=128', '--nogpu_memory_growth', '--labels=a,"b,c"', '--dataset=synthetic'
  ]))) == ['--dataset=synthetic', '--gpu_memory_growth=false', '--labels=a,"b,c"',
           '--model_dir=somewhere', '--preprocess=unit', '--train_steps=10']


def test_help_has_every_flag():
  text = settings_lib.to_flagfile(command_line.parse(ENOUGH))
  for name in KINDS:
    assert '\n  --{}: '.format(name) in command_line.help_text() and '--' + name in text, name
  for word, names in (('bad_image', {'--on_bad_image', '--max_bad_images'}),
                      ('MOBILENETV2', {'--model'}), ('local_workers', {'--local_workers'}),
                      ('restarts', {'--max_restarts'})):
    assert command_line.wants_help(['--help=' + word])
    lines = command_line.help_text(['--help=' + word]).splitlines()
    assert {line.strip().partition(':')[0] for line in lines} >= names and len(lines) < 10
    assert all(word.lower() in line.lower() for line in lines)
  assert not command_line.wants_help(['--help=']) and error_of('--help=')
  with pytest.raises(UserError, match='no flag has this word: --help=home: '):
    command_line.help_text(['--help=home'])


PIECEWISE = '--lr_schedule=piecewise --lr_boundaries_epochs=3,7 --lr_values='
SCALING = '--mode=scaling --train_steps=11'
OVER_WORKERS = SCALING + ' --scale_over=workers'
# (flags, separated by blanks, and what the message must match): values and rules between flags.
RULES = [
    ('--image_size=0 --dataset=oct2017',
     '--image_size must be height,width in pixels: --image_size=0,0: give'),
    ('--image_size=32768,28 --dataset=oct2017', '--image_size must be height,width'),
    ('--labels=a,b,a', '--labels must be different names, none of them empty: --labels=a,b,a: '),
    ('--lr_values=0.1,x', '--lr_values must be numbers: --lr_values=0.1,x: give rates such'),
    ('--lr_values=0.1', '--lr_schedule=constant takes no .*--lr_values: --lr_values=0.1: omit'),
    ('--lr_boundaries_epochs=7,3', '_epochs must be positive and increasing: .*=7.0,3.0: '),
    ('--lr_schedule=piecewise', r'takes N boundaries and N \+ 1 .*: --lr_boundaries_epochs'),
    (PIECEWISE + '1e-3,1e-4', 'rates: --lr_boundaries_epochs=3.0,7.0 --lr_values=0.001,0.0001: '),
    (PIECEWISE + '1,-1,1', '--lr_values must be 0 or more, and finite: .*=1.0,-1.0,1.0: '),
    (PIECEWISE + '1,2,3 --learning_rate=0.5', 'must equal the first of .*: give .*=1.0, or omit'),
    (PIECEWISE + '1,2,3 --lr_warmup_epochs=4', 'end by the first boundary: .*=4.0 .*: give .*=3.0'),
    ('--lr_schedule=exponential --lr_values=0', 'final rate above 0: --lr_values=0.0: '),
    ('--lr_schedule=cosine --lr_values=1e-4,1e-5', 'takes one final rate: --lr_'),
    ('--lr_schedule=cosine --lr_values=1', '=cosine requires --lr_values no higher than --learn'),
    ('--lr_schedule=cosine --lr_boundaries_epochs=1,2', '=cosine takes one boundary, the end'),
    ('--lr_schedule=cosine --lr_boundaries_epochs=1 --lr_warmup_epochs=1', 'end of the decay'),
    ('--on_nan=skip', 'dynamic loss scaling, .*: --on_nan=skip --dtype=fp32: give --dtype=mixed'),
    ('--train_epochs=1', 'exclude each other: --train_steps=10 --train_epochs=1: give one'),
    ('--validation_fraction=1', 'must be between 0 and 1: --validation_fraction=1'),
    ('--validation_fraction=0', 'give a fraction such as 0.2'),
    ('--validation_fraction=.2', 'is only for --dataset=image_folder or tfrecord'),
    ('--save_checkpoints_steps=5 --save_checkpoints_secs=5', 'exclude each other: .*=5 .*=5: give'),
    ('--eval_every_steps=5 --eval_every_epochs=2', 'exclude each other'),
    ('--early_stopping_steps=5 --early_stopping_epochs=2', 'exclude each other'),
    ('--early_stopping_steps=5 --eval_every_epochs=0',
     'before its end .*: --early_stopping_steps=5 --eval_every_epochs=0: omit --eval_every_epochs'),
    ('--early_stopping_epochs=2 --eval_every_epochs=3', 'not be less than .*=2 .*=3: .*=3 or more'),
    ('--stop_at_accuracy=.5 --mode=train', 'can stop early: --stop_at_accuracy=0.5 --mode=train: '),
    ('--early_stopping_steps=4 --eval_every_steps=5', 'not be less than .*=4 .*=5 or more'),
    ('--augment=flip --cache_features', '=flip does not support --cache_features: .*: give --aug'),
    ('--augment=flip,colour', 'takes names .*, each once: .*flip,colour: did you mean color[?] '),
    ('--augment=none,flip', 'each once: --augment=none,flip: .*give none, crop_flip, or some of f'),
    ('--augment=flip,crop_flip', 'each once: --augment=flip,crop_flip: '),
    ('--class_sampling=balanced --class_weights=balanced', 'balanced does not support --class_wei'),
    ('--class_sampling=balanced --input_pipeline=published', 'balanced does not support --input_p'),
    ('--mixup_alpha=.2 --input_pipeline=published', '=0.2 does not support --input_p'),
    ('--mixup_alpha=.2 --cache_features', '=0.2 does not support --cache_features: .*: give --mix'),
    ('--augment=flip --input_pipeline=published', '=flip does not support --input_pipeline=p'),
    ('--input_pipeline=published --on_bad_image=skip', '=published does not support --on_bad_ima'),
    ('--all_reduce_alg=ring', '=ring is for .*=multi_worker_mirrored: .*=mirrored: give .*=nccl, '),
    ('--all_reduce_alg=hierarchical_copy --distribution_strategy=multi_worker_mirrored',
     '=hierarchical_copy is for a single machine: '),
    ('--checkpoint=best', '--checkpoint is only for --mode=evaluate, .* resumes from the latest'),
    ('--distribution_strategy=horovod --all_reduce_alg=ring', 'its own all-reduce .*: omit --al'),
    ('--num_gpus=2 --distribution_strategy=off', '=off has one replica in each process: --num_g'),
    ('--num_gpus=1 --num_cpu_replicas=1 --distribution_strategy=off', 'or CPU replicas, not both'),
    ('--enable_xla --num_cpu_replicas=2', 'mirrored over logical CPU devices: .*: omit one'),
    ('--trace_steps=6:5', '--trace_steps must be first:last, starting .*: --trace_steps=6:5: '),
    ('--trace_steps=1:1001', '--trace_steps must be first:last, starting from 1, at most'),
    ('--trace_steps=11:12', 'must not start after --train_steps: .*11:12 --train_steps=10: '),
    ('--runs=a,b', '--runs is only for --mode=report: --runs=a,b --mode=train_and_evaluate: '),
    ('--mode=report', '--mode=report requires --runs: .*: give --runs=FOLDER'),
    ('--num_shards=2', '--num_shards is only for --mode=write_tfrecords: '),
    ('--mode=predict', '=predict requires --input: --mode=predict without --input: give --input='),
    ('--mode=reproduce', '--mode=reproduce requires --workload: .*: give --workload=NAME'),
    ('--mode=reproduce --workload=oct2017', 'its published flags: --train_steps=10: omit it'),
    ('--mode=scaling', 'more steps than --throughput_warmup_steps: .*=10 .*=10: give more than 10'),
    (SCALING + ' --distribution_strategy=off', 'for several replicas: .*=off: give .*=mirrored'),
    (SCALING + ' --cache_features', 'how images are read.*: omit it'),
    (OVER_WORKERS + ' --distribution_strategy=parameter_server', 'requires synchronous workers: '),
    (OVER_WORKERS + ' --all_reduce_alg=hierarchical_copy', 'not support several workers: .*omit'),
    ('--format=h5', 'unknown flag: --format: did you mean --export_format[?]'),
    ('--lr=1', 'unknown flag: --lr: did you mean --learning_rate[?]'),
    ('--patience=3', 'unknown flag: --patience: did you mean --early_stopping_epochs[?]'),
    ('--model=resnet', '--model=resnet: did you mean resnet50[?] choose from fashion_cnn'),
    ('--model=resnet18', 'did you mean resnet50[?]'),
    ('--model=resnet110', 'did you mean resnet101[?]'),
    ('--model=fashion_cn2', 'did you mean fashion_cnn[?]'),
    ('--zzz', 'unknown flag: --zzz: --help lists all flags'),
    ('--' + 'long' * 1000, r'unknown flag: --(long)+lo... .4002 characters. ...(long)+: --help'),
    ('--dataset=x', ' no such choice: .*=x: .*tfrecord, synthetic, or give package'),
    ('--dtype=x', '--dtype has no such choice: --dtype=x: choose from fp32, mixed$'),
    ('--noreport_page=1', '--noreport_page=1 does not take an argument: see --help'),
    ('--report_page no', 'an argument is not a flag: no: '),
    ('evaluate', 'an argument is not a flag: evaluate: write it as --mode=evaluate$'),
    ('--model_dir=\udcff', r"--model_dir is not UTF-8: --model_dir='\\udcff': use a UTF-8 name"),
    ('--data_dir=\u3000a', '--data_dir begins or ends with whitespace: .*: remove it'),
]
# What just does not break a rule.
ALLOWED = [
    PIECEWISE + '.5,2,0 --lr_warmup_epochs=3 --learning_rate=0.5', SCALING, OVER_WORKERS,
    '--lr_schedule=cosine --lr_values=.001', '--num_gpus=1 --distribution_strategy=one_device',
    '--eval_every_steps=20 --save_checkpoints_steps=10', '--enable_xla --num_cpu_replicas=1',
    '--early_stopping_steps=5 --eval_every_steps=5', '--augment=crop,flip,color --cache=memory',
    '--augment=crop_flip,rotate',
    '--input_pipeline=published --cache=none', '--trace_steps=1:1000', '--trace_steps=10:12']
# The same of complete command lines: what each mode needs.
OF_MODES = [
    ('--model_dir=x', 'training requires --train_steps or --train_epochs'),
    ('--mode=scaling --model_dir=x --train_epochs=1',
     'differ in steps per epoch: --train_epochs=1: give --train_steps=N'),
    ('--mode=lr_finder --model_dir=x --distribution_strategy=parameter_server',
     'trains in a single process: --distribution_strategy=parameter_server: give --distr'),
    ('--mode=evaluate', '--model_dir is required'), ('--mode=audit', '--model_dir is required'),
    ('--train_steps=1', '^$'),
    ('--train_epochs=2 --model_dir=x --lr_schedule=cosine --lr_warmup_epochs=2',
     'before the end of the decay: --lr_warmup_epochs=2.0 --train_epochs=2: '),
    *(('--mode=' + allowed, '^$') for allowed in (
        'download --dataset=fashion_mnist --data_dir=x', 'doctor', 'input_benchmark',
        'evaluate --model_dir=x', 'scaling --model_dir=x', 'export --model_dir=x',
        'write_tfrecords --output=x', 'report --model_dir=x --runs=y', 'lr_finder --model_dir=x',
        'reproduce --model_dir=x --workload=oct2017 --seed=3 --json'))]
# The built-in data sets that use a flag.
OF_DATA_SETS = {
    '--train_pattern=a': 'image_folder or tfrecord', '--eval_pattern=a': 'image_folder or tfrecord',
    '--labels=a,b': 'image_folder or tfrecord or synthetic', '--image_key=a': 'tfrecord',
    '--image_size=9,9': 'image_folder or tfrecord or oct2017 or synthetic',
    '--label_key=a': 'tfrecord', '--label_offset=1': 'tfrecord', '--compression=gzip': 'tfrecord'}


def test_rules_between_flags():
  for arguments, message in RULES + [(allowed, '^$') for allowed in ALLOWED] + OF_MODES:
    enough = () if (arguments, message) in OF_MODES else ENOUGH
    error = error_of(*arguments.split(' '), enough=enough)
    assert re.search(message, error), (arguments, error)
  assert 'did you mean --batch_size=VALUE?' in error_of('--batch_size 3')
  for argument, datasets in OF_DATA_SETS.items():
    assert error_of(argument) == (
        '{0} is only for --dataset={1}: {0} and --dataset=fashion_mnist_sample: change --dataset, '
        'or omit {0}'.format(argument.partition('=')[0], datasets))
    for dataset in datasets.split(' or '):
      assert not error_of(argument, '--dataset=' + dataset), (argument, dataset)


MAX = 2 ** 31 - 1
# The first and the last of the integers, unless these are 1 and MAX.
INTEGERS = {
    **dict.fromkeys(('trainable_layers', 'seed', 'step_timeout_secs', 'save_retry_secs',
                     'throughput_warmup_steps', 'eval_every_epochs'), (0, MAX)),
    **dict.fromkeys(('num_cpu_replicas', 'inter_op_parallelism_threads',
                     'intra_op_parallelism_threads', 'num_parallel_calls'), (0, 1000)),
    'num_gpus': (-1, MAX), 'prefetch': (1, 1000)}
# The rule, values that break it, and values that just do not.
NUMBERS = {
    'stop_at_accuracy': ('must be above 0 and at most 1', (0., 1.01), (.01, 1)),
    'max_bad_images': ('must be from 0 to 1', (-.01, 1.01), (0, 1)),
    'label_smoothing': ('must be at least 0 and below 1', (-.01, 1.), (0, .99)),
    **dict.fromkeys(('gradient_clip_norm', 'weight_decay'), (
        'must be from 0 to 1000000', (-1e-9, 1000000.5), (0, 10 ** 6))),
    'ema_decay': ('must be between 0 and 1', (0., 1.), (1e-9, .9999)),
    'lr_warmup_epochs': ('must be from 0 to 1000000', (-1e-9, 1e308), (0, 10 ** 6)),
    'mixup_alpha': ('must be from 0 to 100', (-1e-9, 100.5), (0., 100.)),
    'backbone_lr_factor': ('must be above 0 and at most 1', (0., 1.5), (1e-9, 1.)),
    'learning_rate': ('must be positive and finite', (0., 9e-38, 1.1e38), (1e-37, 1e38))}
WITHOUT_LIMITS = {'verbosity', 'label_offset', 'validation_fraction'}


def test_numbers_out_of_range():
  for name in {name for name, kind in KINDS.items() if kind in (int, float)} - WITHOUT_LIMITS:
    if KINDS[name] is int:
      first, last = right = INTEGERS.get(name, (1, MAX))
      rule, remedy = 'is out of range', 'give an integer from {} to {}'.format(first, last)
      wrong = first - 1, last + 1, 10 ** 100
    else:
      rule, wrong, right = NUMBERS[name]
      remedy, wrong = 'give ', wrong + tuple(map(float, ('nan', 'inf', '-inf')))
    for value in wrong:
      assert error_of('--{}={}'.format(name, value)).startswith(
          '--{0} {1}: --{0}={2}: {3}'.format(name, rule, value, remedy))
    for value in right:
      assert dict(settings_lib.Settings(**{name: value}).items())[name] == value


def test_values_of_a_wrong_type():
  no_number = ['', ' ', 'x', '1,5', '--1', '1 2', '\u00bd', '\udcff']
  wrong = {int: ('must be an integer', no_number + ['nan', 'inf', '1.5', '1e3']),
           float: ('must be a number', no_number),
           bool: ('must be true or false', ['', 'maybe', '2', '\udcff']),
           str: ('line break|such choice|not UTF-8', ['a\nb', 'a\0b', '\udcff', 'a\x85b']),
           tuple: ('must be|list|line break|not UTF-8', ['"a', 'a\nb', '\udcff'])}
  for name, kind in KINDS.items():
    rule, values = wrong[kind]
    for value in values:
      assert re.search('^--{} .*({})'.format(name, rule),
                       error_of('--{}={}'.format(name, value))), (name, value)
    if kind is not bool:
      for arguments in (['--' + name], ['--' + name, '--seed=1']):
        assert error_of(*arguments) == '--{0} has no value: --{0}: write it as --{0}=VALUE'.format(
            name)
      assert error_of('--no' + name).startswith('unknown flag: --no' + name)
  for name in ('weights', 'cache', 'checkpoint', 'best_metric', 'output', 'image_key', 'label_key'):
    assert re.match('--{0} is empty: --{0}=: give '.format(name), error_of('--{}='.format(name)))
  assert error_of('--model_dir=').startswith('--model_dir is empty: --model_dir=: give a folder')


def test_misspelled_flags_are_proposed():
  for name in KINDS:
    for wrong in {name[:-1] + 'x', name[1:], name.replace('_', '-') + 's', name.upper() + '_'}:
      assert wrong in KINDS or re.match('unknown flag: --{}: .*--{}[,?]'.format(wrong, name),
                                        error_of('--{}=1'.format(wrong))), wrong


TEXTS = st.text() | st.text(st.characters(whitelist_categories=('Cs', 'Cc', 'Zs'))) | (
    st.sampled_from(['0', '1', '-1', '1e999', '1,2', '3:4', 'true', 'none', '"', '--', '~', '#']))


@settings(max_examples=100)
@example(values=[('model_dir', '\ud800')], arguments=[])
@given(values=st.lists(st.tuples(st.sampled_from(sorted(KINDS)), TEXTS), max_size=4),
       arguments=st.lists(st.text(alphabet='-=: abdehilnosz"\n\0\ud800', max_size=8) | TEXTS))
def test_any_command_line_gives_settings_or_a_user_error(values, arguments):
  error_of(*arguments)
  given = ['--{}={}'.format(*value) for value in values]
  if not error_of(*given):
    parsed = command_line.parse(ENOUGH + given)
    assert command_line.parse(settings_lib.to_arguments(parsed)) == parsed


# Texts that a flagfile can contain; also those that are syntax of a list.
_ITEMS = st.text() | st.text('"\',: #-1a') | st.floats(allow_nan=False).map(str)
VALUES = {str: _ITEMS, int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans()}


def values_of(flag):
  if flag.value_type is not tuple:
    return VALUES[flag.value_type]
  items = VALUES[flag.types[0].__args__[0]]
  return st.lists(items.map(lambda item: item.strip() if isinstance(item, str) else item)).map(
      tuple)


@settings(max_examples=300)
@given(data=st.data(), flag=st.sampled_from(sorted(all_flags().values(), key=str)))
def test_parse_and_format_are_inverse(data, flag):
  value = data.draw(values_of(flag))
  items = value if isinstance(value, tuple) else (value,)
  assume(all(item.splitlines() in ([], [item]) and '\0' not in item
             for item in items if isinstance(item, str)))
  assume(not (flag.accepts_square and len(value) == 1))
  assert flag.parse(flag.format(value)) == value
  assert flag.to_argument(value) == '--{}={}'.format(flag.name, flag.format(value))
