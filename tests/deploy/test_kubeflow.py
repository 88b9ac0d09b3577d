"""The jobs in deploy/kubeflow: fields that the operators know, flags that the program knows."""

import json
import re
import socket
import subprocess
import sys

import jsonschema
import pytest
import yaml
from conftest import ROOT

from estimator_train.settings import command_line

FOLDER = ROOT / 'deploy' / 'kubeflow'
JOBS = ('multi_worker_mirrored', 'parameter_server', 'horovod')
TF_JOB = json.loads((ROOT / 'tests' / 'deploy' / 'tfjob.schema.json').read_text())
DOCKERFILE = (ROOT / 'Dockerfile').read_text()
MPI_DOCKERFILE = (ROOT / 'deploy' / 'docker' / 'horovod.Dockerfile').read_text()


def resources(name):
  return list(yaml.safe_load_all((FOLDER / (name + '.yaml')).read_text()))


def job(name):
  return resources(name)[0]


def replicas(name):
  spec = job(name)['spec']
  return spec.get('tfReplicaSpecs') or spec['mpiReplicaSpecs']


def container(spec):
  only, = spec['template']['spec']['containers']
  return only


@pytest.mark.parametrize('name, kinds', zip(JOBS[:2], ({'Worker'}, {'Chief', 'Worker', 'PS'})))
def test_tasks_fit_the_operator_and_the_strategy(name, kinds, monkeypatch):
  jsonschema.validate(job(name), TF_JOB)
  monkeypatch.chdir(str(ROOT))  # The image has the same relative paths.
  specs = replicas(name)
  assert set(specs) == kinds and specs.get('Chief', {'replicas': 1})['replicas'] == 1
  # Parameter servers never end by themselves.
  assert job(name)['spec']['runPolicy']['cleanPodPolicy'] == 'Running'
  args = container(specs['Worker'])['args']
  assert all(container(spec)['args'] == args for spec in specs.values())
  settings = command_line.parse(args)
  assert settings.devices.distribution_strategy == name
  gpus = {kind: container(spec)['resources']['limits'].get('nvidia.com/gpu', 0)
          for kind, spec in specs.items()}
  assert all((count > 0) == (kind != 'PS') for kind, count in gpus.items())
  assert settings.optimizer.batch_size == 64 * sum(
      spec['replicas'] * gpus[kind] for kind, spec in specs.items())
  mounts = {mount['mountPath'] for mount in container(specs['Worker'])['volumeMounts']}
  folders = (settings.run.model_dir, settings.data.data_dir)
  assert {'/' + path.split('/')[1] for path in folders} < mounts
  download = command_line.parse(container(job('download')['spec'])['args'])
  assert (download.run.mode, download.data.dataset, download.data.data_dir) == (
      'download', settings.data.dataset, settings.data.data_dir)


@pytest.mark.parametrize('spec', [spec for name in JOBS[:2] for spec in replicas(name).values()])
def test_pods_fit_the_operator_and_the_image(spec):
  assert spec['restartPolicy'] == 'ExitCode'  # Restarts on the codes that are worth it.
  found, pod = container(spec), spec['template']['spec']
  assert found['name'] == 'tensorflow'
  assert found['ports'] == [{'name': 'tfjob-port', 'containerPort': 2222}]
  home = re.search(r'HOME=(\S+)', DOCKERFILE).group(1)
  assert {mount['mountPath'] for mount in found['volumeMounts']} == {
      *re.search(r'^VOLUME (.*)$', DOCKERFILE, re.MULTILINE).group(1).split(), home, '/dev/shm'}
  user, group = re.search(r'^USER (\d+):(\d+)$', DOCKERFILE, re.MULTILINE).groups()
  context = pod['securityContext']
  assert (context['runAsUser'], context['fsGroup']) == (int(user), int(group))
  assert found['securityContext'] == {
      'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
      'capabilities': {'drop': ['ALL']}}
  assert pod['terminationGracePeriodSeconds'] == 120  # Time to save a checkpoint.
  assert {volume['persistentVolumeClaim']['claimName'] for volume in pod['volumes']
          if 'persistentVolumeClaim' in volume} == {
              claim['metadata']['name'] for claim in resources('volumes')}


def test_mpi_job_fits_the_program_and_its_image(monkeypatch):
  monkeypatch.chdir(str(ROOT))
  specs = replicas('horovod')
  worker, args = specs['Worker'], container(specs['Launcher'])['args']
  assert args[args.index('-np') + 1] == str(worker['replicas'])
  settings = command_line.parse(args[args.index('estimator_train') + 1:])
  assert settings.devices.distribution_strategy == 'horovod'
  assert settings.optimizer.batch_size == 64 * worker['replicas']
  mounts = {mount['mountPath'] for mount in container(worker)['volumeMounts']}
  folders = (settings.run.model_dir, settings.data.data_dir)
  assert {'/' + path.split('/')[1] for path in folders} < mounts
  home = re.search(r'^ENV HOME=(.*)$', MPI_DOCKERFILE, re.MULTILINE).group(1)
  assert job('horovod')['spec']['sshAuthMountPath'] == home + '/.ssh'
  port, = container(worker)['ports']
  assert 'Port {}'.format(port['containerPort']) in MPI_DOCKERFILE
  assert container(worker)['args'][-1] in MPI_DOCKERFILE
  for spec in specs.values():
    context = spec['template']['spec']['securityContext']
    assert '--uid {}'.format(context['runAsUser']) in MPI_DOCKERFILE


def test_pods_have_least_privileges():
  pods = [spec['template']['spec'] for name in JOBS for spec in replicas(name).values()]
  for pod in [*pods, job('download')['spec']['template']['spec']]:
    assert pod['automountServiceAccountToken'] is False
    assert pod['securityContext']['runAsNonRoot'] is True
  for name in JOBS:  # Only pods of the same job can connect.
    found, policy = resources(name)
    pods = {'matchLabels': {'training.kubeflow.org/job-name': found['metadata']['name']}}
    assert policy['spec'] == {'podSelector': pods, 'policyTypes': ['Ingress'],
                              'ingress': [{'from': [{'podSelector': pods}]}]}


def test_startup_probe_finds_a_listening_task():
  found = container(replicas(JOBS[0])['Worker'])
  pattern = ':{:04X} '.format(found['ports'][0]['containerPort'])
  command = found['startupProbe']['exec']['command']
  with socket.socket(socket.AF_INET6) as server:
    server.bind(('::', 0))
    here = [arg.replace(pattern, ':{:04X} '.format(server.getsockname()[1])) for arg in command]
    assert here != command
    assert subprocess.call(here) == 1
    server.listen()
    assert subprocess.call(here) == 0


# A rank that saves a checkpoint on SIGTERM; -m makes it look like one.
RANK = """
import pathlib, signal, sys
def save(*_):
  pathlib.Path('saved').touch()
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
print(flush=True)
signal.pause()
"""


def test_ranks_of_horovod_end_before_their_ssh_server(tmp_path):
  (tmp_path / 'stand_in_of_a_rank.py').write_text(RANK)
  program, option, code = container(replicas('horovod')['Worker'])['lifecycle']['preStop'][
      'exec']['command']
  assert (program, option) == ('python', '-c')
  rank = subprocess.Popen([sys.executable, '-m', 'stand_in_of_a_rank'], cwd=str(tmp_path),
                          stdout=subprocess.PIPE)
  rank.stdout.readline()
  # Runs of other tests are not ended.
  here = code.replace("'estimator_train'", "'stand_in_of_a_rank'")
  assert here != code
  hook = subprocess.Popen([sys.executable, '-c', here])
  assert rank.wait(60) == 143 and hook.wait(60) == 0
  assert (tmp_path / 'saved').exists()
  # A restarted SSH server lets the launcher start the ranks again.
  assert replicas('horovod')['Worker']['restartPolicy'] == 'OnFailure'


VALIDATE = """
import json, sys, kubernetes_validate
for resource in json.load(sys.stdin):
  kubernetes_validate.validate(resource, '1.30', strict=True)
"""


@pytest.mark.slow
def test_resources_are_valid_in_kubernetes(clients_python):
  def validate(*found):
    return subprocess.run([clients_python, '-I', '-c', VALIDATE], input=json.dumps(found).encode(),
                          stderr=subprocess.PIPE, timeout=120)

  pods = [dict(spec['template'], apiVersion='v1', kind='Pod') for name in JOBS
          for spec in replicas(name).values()]
  done = validate(*resources('volumes'), *resources('download'), *pods,
                  *(resources(name)[1] for name in JOBS))
  assert done.returncode == 0, done.stderr.decode()
  pods[0]['spec']['fsgroup'] = 1000
  assert b"'fsgroup' was unexpected" in validate(pods[0]).stderr
