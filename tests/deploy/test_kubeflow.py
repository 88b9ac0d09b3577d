"""The jobs in deploy/kubeflow: fields that the operators know, flags that the program knows."""

import copy
import json
import re

import jsonschema
import pytest
import yaml
from conftest import ROOT

from estimator_train import flags

FOLDER = ROOT / 'deploy' / 'kubeflow'
JOBS = ('multi_worker_mirrored', 'parameter_server')
SCHEMA = json.loads((ROOT / 'tests' / 'deploy' / 'tfjob.schema.json').read_text())
DOCKERFILE = (ROOT / 'Dockerfile').read_text()


def job(name):
  return yaml.safe_load((FOLDER / (name + '.yaml')).read_text())


def replicas(name):
  return job(name)['spec']['tfReplicaSpecs']


PODS = [pytest.param(spec, id='{}-{}'.format(name, kind))
        for name in JOBS for kind, spec in replicas(name).items()]


def container(spec):
  only, = spec['template']['spec']['containers']
  return only


def test_every_manifest_is_looked_at():
  assert {path.stem for path in FOLDER.iterdir()} == {'volumes', 'horovod'} | set(JOBS)


@pytest.mark.parametrize('name', JOBS)
def test_job_is_of_the_operators_form(name):
  jsonschema.Draft7Validator.check_schema(SCHEMA)
  jsonschema.validate(job(name), SCHEMA)


def misspelt(found, *path):
  """Returns a job one of whose fields, or values, is another."""
  found = copy.deepcopy(found)
  place = found
  for part in path[:-2]:
    place = place[part]
  before, after = path[-2:]
  if before in place:
    place[after] = place.pop(before)
  return found


@pytest.mark.parametrize('path', [
    ('kind', 'Kind'), ('spec', 'runPolicy', 'runpolicy'),
    ('spec', 'runPolicy', 'cleanPodPolicy', 'cleanPodsPolicy'),
    ('spec', 'tfReplicaSpecs', 'Worker', 'Workers'),
    ('spec', 'tfReplicaSpecs', 'Worker', 'restartPolicy', 'restart'),
    ('spec', 'tfReplicaSpecs', 'Worker', 'template', 'spec', 'volumes', 'volume'),
    ('spec', 'tfReplicaSpecs', 'Worker', 'template', 'spec', 'containers', 0, 'args', 'arguments'),
    ('spec', 'tfReplicaSpecs', 'Worker', 'template', 'spec', 'volumes', 0, 'name', 'nam'),
], ids=lambda path: str(path[-1]))
@pytest.mark.parametrize('name', JOBS)
def test_schema_finds_what_is_misspelt(name, path):
  with pytest.raises(jsonschema.ValidationError):
    jsonschema.validate(misspelt(job(name), *path), SCHEMA)


def test_replicas_are_those_that_the_strategy_needs():
  assert set(replicas('multi_worker_mirrored')) == {'Worker'}
  assert set(replicas('parameter_server')) == {'Chief', 'Worker', 'PS'}
  assert replicas('parameter_server')['Chief']['replicas'] == 1
  # Those of parameter servers never end by themselves.
  assert all(job(name)['spec']['runPolicy']['cleanPodPolicy'] == 'Running' for name in JOBS)


@pytest.mark.parametrize('spec', PODS)
def test_pod_starts_again_on_the_codes_that_are_worth_it(spec):
  assert spec['restartPolicy'] == 'ExitCode'


@pytest.mark.parametrize('spec', PODS)
def test_operator_finds_container_and_port(spec):
  assert container(spec)['name'] == 'tensorflow'
  assert container(spec)['ports'] == [{'name': 'tfjob-port', 'containerPort': 2222}]


@pytest.mark.parametrize('name', JOBS)
def test_tasks_are_one_command(name):
  args, *others = [container(spec)['args'] for spec in replicas(name).values()]
  assert all(other == args for other in others)
  assert '--distribution_strategy=' + name in args
  assert 'command' not in container(replicas(name)['Worker'])  # The image has it.


@pytest.mark.parametrize('name', JOBS)
def test_flags_are_the_programs(name, monkeypatch):
  monkeypatch.chdir(str(ROOT))  # The image has the same relative paths.
  args = container(replicas(name)['Worker'])['args']
  assert flags.parse(args).distribution_strategy == name
  assert flags.parse(args).train_epochs  # By the flagfile.
  others = [arg for arg in args if not arg.startswith('--distribution_strategy=')]
  settings = flags.parse(others)
  mounts = {mount['mountPath'] for mount in container(replicas(name)['Worker'])['volumeMounts']}
  for folder in (settings.model_dir, settings.data_dir):
    assert '/' + folder.split('/')[1] in mounts


@pytest.mark.parametrize('name', JOBS)
def test_batch_divides_by_those_that_train(name):
  count = sum(spec['replicas'] * container(spec)['resources']['limits']['nvidia.com/gpu']
              for kind, spec in replicas(name).items() if kind != 'PS')
  args = container(replicas(name)['Worker'])['args']
  assert flags.parse(args).batch_size == 64 * count


@pytest.mark.parametrize('spec', PODS)
def test_mounts_are_the_images(spec):
  mounts = {mount['mountPath']: mount for mount in container(spec)['volumeMounts']}
  volumes = re.search(r'^VOLUME (.*)$', DOCKERFILE, re.MULTILINE).group(1).split()
  home = re.search(r'HOME=(\S+)', DOCKERFILE).group(1)
  assert set(mounts) == set(volumes) | {home, '/dev/shm'}
  by_name = {volume['name']: volume for volume in spec['template']['spec']['volumes']}
  assert {mount['name'] for mount in mounts.values()} == set(by_name)
  assert by_name[mounts['/dev/shm']['name']]['emptyDir']['medium'] == 'Memory'
  # The root is read-only, and what a run writes lies there.
  assert not mounts['/model'].get('readOnly') and not mounts[home].get('readOnly')


@pytest.mark.parametrize('spec', PODS)
def test_pod_is_no_root_and_has_time_to_save(spec):
  pod = spec['template']['spec']
  user = re.search(r'^USER (\d+):(\d+)$', DOCKERFILE, re.MULTILINE)
  context = pod['securityContext']
  assert context['runAsNonRoot'] is True
  assert (context['runAsUser'], context['fsGroup']) == (int(user.group(1)), int(user.group(2)))
  assert container(spec)['securityContext'] == {
      'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
      'capabilities': {'drop': ['ALL']}}
  assert pod['terminationGracePeriodSeconds'] == 120


@pytest.mark.parametrize('name', JOBS)
def test_who_computes_has_a_gpu(name):
  for kind, spec in replicas(name).items():
    limits = container(spec)['resources']['limits']
    assert ('nvidia.com/gpu' in limits) == (kind != 'PS')


@pytest.mark.parametrize('spec', PODS)
def test_claims_are_shared_by_all_nodes(spec):
  claims = {claim['metadata']['name']: claim
            for claim in yaml.safe_load_all((FOLDER / 'volumes.yaml').read_text())}
  named = {volume['persistentVolumeClaim']['claimName']
           for volume in spec['template']['spec']['volumes'] if 'persistentVolumeClaim' in volume}
  assert named == set(claims)
  assert all(claim['spec']['accessModes'] == ['ReadWriteMany'] for claim in claims.values())


def mpi_schema():
  """The fields of an MPIJob that differ from those of a TFJob."""
  schema = copy.deepcopy(SCHEMA)
  schema['properties']['apiVersion'] = {'const': 'kubeflow.org/v2beta1'}
  schema['properties']['kind'] = {'const': 'MPIJob'}
  replica = schema['definitions']['replicaSpec']
  schema['properties']['spec'] = {
      'type': 'object', 'additionalProperties': False, 'required': ['mpiReplicaSpecs'],
      'properties': {
          'slotsPerWorker': {'type': 'integer', 'minimum': 1},
          'sshAuthMountPath': {'type': 'string', 'pattern': '^/'},
          'launcherCreationPolicy': {'enum': ['AtStartup', 'WaitForWorkersReady']},
          'mpiImplementation': {'enum': ['OpenMPI', 'Intel', 'MPICH']},
          'runPolicy': schema['properties']['spec']['properties']['runPolicy'],
          'mpiReplicaSpecs': {
              'type': 'object', 'additionalProperties': False, 'required': ['Launcher', 'Worker'],
              'properties': {'Launcher': replica, 'Worker': replica}}}}
  return schema


def test_mpi_job_is_of_the_operators_form():
  found = job('horovod')
  jsonschema.validate(found, mpi_schema())
  for path in (('spec', 'slotsPerWorker', 'slots'),
               ('spec', 'mpiReplicaSpecs', 'Launcher', 'Chief'),
               ('spec', 'mpiReplicaSpecs', 'Worker', 'template', 'spec', 'volumes', 'volume')):
    with pytest.raises(jsonschema.ValidationError):
      jsonschema.validate(misspelt(found, *path), mpi_schema())


def test_mpi_job_starts_the_program(monkeypatch):
  monkeypatch.chdir(str(ROOT))
  specs = job('horovod')['spec']['mpiReplicaSpecs']
  args = container(specs['Launcher'])['args']
  assert args[args.index('-np') + 1] == str(specs['Worker']['replicas'])
  settings = flags.parse(args[args.index('estimator_train') + 1:])
  assert settings.distribution_strategy == 'horovod'
  assert settings.batch_size == 64 * specs['Worker']['replicas']
  mounts = {mount['mountPath'] for mount in container(specs['Worker'])['volumeMounts']}
  assert {'/' + path.split('/')[1] for path in (settings.model_dir, settings.data_dir)} < mounts


def test_mpi_job_fits_its_image():
  dockerfile = (ROOT / 'deploy' / 'docker' / 'horovod.Dockerfile').read_text()
  spec = job('horovod')['spec']
  home = re.search(r'^ENV HOME=(.*)$', dockerfile, re.MULTILINE).group(1)
  assert spec['sshAuthMountPath'] == home + '/.ssh'
  worker = spec['mpiReplicaSpecs']['Worker']
  port, = container(worker)['ports']
  assert 'Port {}'.format(port['containerPort']) in dockerfile
  assert container(worker)['args'][-1] in dockerfile
  for replica in spec['mpiReplicaSpecs'].values():
    pod = replica['template']['spec']['securityContext']
    assert pod['runAsNonRoot'] is True and '--uid {}'.format(pod['runAsUser']) in dockerfile
