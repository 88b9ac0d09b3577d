"""The jobs in deploy/kubeflow: fields that the operators know, flags that the program knows."""

import json
import re
import socket
import subprocess
import sys

import jsonschema
import pytest
import yaml
from conftest import ROOT, run_process

from estimator_train.settings import command_line

# The GPUs of each type of task, by the name of the job.
JOBS = {'multi_worker_mirrored': {'Worker': 1},
        'parameter_server': {'Chief': 1, 'Worker': 1, 'PS': 0},
        'horovod': {'Launcher': 0, 'Worker': 1}}
TF_JOB = json.loads((ROOT / 'tests' / 'deploy' / 'tfjob.schema.json').read_text())
DOCKERFILE = (ROOT / 'Dockerfile').read_text()
MPI_DOCKERFILE = (ROOT / 'deploy' / 'docker' / 'horovod.Dockerfile').read_text()


def resources(name):
  return list(yaml.safe_load_all((ROOT / 'deploy/kubeflow' / (name + '.yaml')).read_text()))


def job(name):
  return resources(name)[0]


def replicas(name):
  spec = job(name)['spec']
  return spec.get('tfReplicaSpecs') or spec['mpiReplicaSpecs']


def container(spec):
  only, = spec['template']['spec']['containers']
  return only


def mounts(spec):
  return {mount['mountPath'] for mount in container(spec)['volumeMounts']}


def settings_of(spec):
  """Returns the settings of a container whose arguments are the flags, or end with a command."""
  args = container(spec)['args']
  return command_line.parse(args[args.index('estimator_train') + 1:] if '-m' in args else args)


@pytest.mark.parametrize('name', JOBS)
def test_flags_fit_the_tasks_and_the_volumes(name, monkeypatch):
  monkeypatch.chdir(str(ROOT))  # The image has the same relative paths.
  specs = replicas(name)
  settings = settings_of(specs.get('Launcher') or specs['Worker'])
  assert settings.devices.distribution_strategy == name
  assert {kind: container(spec)['resources']['limits'].get('nvidia.com/gpu', 0)
          for kind, spec in specs.items()} == JOBS[name]
  assert settings.optimizer.batch_size == 64 * sum(
      spec['replicas'] * JOBS[name][kind] for kind, spec in specs.items())
  folders = settings.run.model_dir, settings.data.data_dir
  assert {'/' + path.split('/')[1] for path in folders} < mounts(specs['Worker'])
  download = settings_of(job('download')['spec'])
  assert (download.run.mode, download.data.dataset, download.data.data_dir) == (
      'download', settings.data.dataset, settings.data.data_dir)
  # Parameter servers never end by themselves.
  assert job(name)['spec']['runPolicy']['cleanPodPolicy'] == 'Running'


@pytest.mark.parametrize('name', list(JOBS)[:2])
def test_tf_job_fits_the_operator_and_the_image(name):
  jsonschema.validate(job(name), TF_JOB)
  specs = replicas(name)
  assert specs.get('Chief', {'replicas': 1})['replicas'] == 1
  home = re.search(r'HOME=(\S+)', DOCKERFILE).group(1)
  volumes = re.search(r'^VOLUME (.*)$', DOCKERFILE, re.MULTILINE).group(1).split()
  for spec in specs.values():
    found, pod = container(spec), spec['template']['spec']
    assert found['args'] == container(specs['Worker'])['args']
    assert spec['restartPolicy'] == 'ExitCode'  # Restarts on the codes that are worth it.
    assert pod['terminationGracePeriodSeconds'] == 120  # Time to save a checkpoint.
    assert found['name'] == 'tensorflow'
    assert found['ports'] == [{'name': 'tfjob-port', 'containerPort': 2222}]
    assert found['securityContext'] == {
        'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True,
        'capabilities': {'drop': ['ALL']}}
    assert mounts(spec) == {*volumes, home, '/dev/shm'}
    assert {volume['persistentVolumeClaim']['claimName'] for volume in pod['volumes']
            if 'persistentVolumeClaim' in volume} == {
                claim['metadata']['name'] for claim in resources('volumes')}


def test_mpi_job_fits_its_image():
  specs = replicas('horovod')
  worker, args = specs['Worker'], container(specs['Launcher'])['args']
  assert args[args.index('-np') + 1] == str(worker['replicas'])
  home = re.search(r'^ENV HOME=(.*)$', MPI_DOCKERFILE, re.MULTILINE).group(1)
  assert job('horovod')['spec']['sshAuthMountPath'] == home + '/.ssh'
  port, = container(worker)['ports']
  assert 'Port {}'.format(port['containerPort']) in MPI_DOCKERFILE
  assert container(worker)['args'][-1] in MPI_DOCKERFILE


def test_pods_have_the_user_of_the_image_and_least_privileges():
  specs = [spec for name in JOBS for spec in replicas(name).values()]
  for spec in (*specs, job('download')['spec']):
    pod = spec['template']['spec']
    assert pod['automountServiceAccountToken'] is False
    assert pod['securityContext'] == {
        'runAsNonRoot': True, 'runAsUser': 1000, 'runAsGroup': 1000, 'fsGroup': 1000,
        'fsGroupChangePolicy': 'OnRootMismatch', 'seccompProfile': {'type': 'RuntimeDefault'}}
  assert '\nUSER 1000:1000\n' in DOCKERFILE and '--uid 1000 ' in MPI_DOCKERFILE
  for name in JOBS:  # Only pods of the same job can connect.
    found, policy = resources(name)
    pods = {'matchLabels': {'training.kubeflow.org/job-name': found['metadata']['name']}}
    assert policy['spec'] == {'podSelector': pods, 'policyTypes': ['Ingress'],
                              'ingress': [{'from': [{'podSelector': pods}]}]}


def test_startup_probe_finds_a_listening_task():
  found = container(replicas('multi_worker_mirrored')['Worker'])
  pattern = ':{:04X} '.format(found['ports'][0]['containerPort'])
  command = found['startupProbe']['exec']['command']
  with socket.socket(socket.AF_INET6) as server:
    server.bind(('::', 0))
    here = [arg.replace(pattern, ':{:04X} '.format(server.getsockname()[1])) for arg in command]
    assert here != command
    assert subprocess.call(here) == 1
    server.listen()
    assert subprocess.call(here) == 0


def test_ranks_of_horovod_end_before_their_ssh_server(tmp_path):
  # By its arguments, Bash looks like a rank; it saves no checkpoint, but ends with the same code.
  (tmp_path / 'a_rank').write_text('trap "exit 143" TERM; echo; for _ in {1..60}; do sleep 1; done')
  rank = subprocess.Popen(['bash', '-m', 'a_rank'], cwd=str(tmp_path), stdout=subprocess.PIPE)
  rank.stdout.readline()
  worker = replicas('horovod')['Worker']
  program, option, code = container(worker)['lifecycle']['preStop']['exec']['command']
  assert (program, option) == ('python', '-c')
  here = code.replace("'estimator_train'", "'a_rank'")  # Runs of other tests are not ended.
  assert here != code
  hook = subprocess.Popen([sys.executable, '-c', here])
  assert rank.wait(60) == 143 and hook.wait(60) == 0
  # A restarted SSH server lets the launcher start the ranks again.
  assert worker['restartPolicy'] == 'OnFailure'


VALIDATE = """
import json, sys, kubernetes_validate
for resource in json.load(sys.stdin):
  kubernetes_validate.validate(resource, '1.30', strict=True)
"""


@pytest.mark.slow
def test_resources_are_valid_in_kubernetes(clients_python):
  def validate(*found):
    return run_process(clients_python, '-I', '-c', VALIDATE, input=json.dumps(found), timeout=120)

  pods = [dict(spec['template'], apiVersion='v1', kind='Pod') for name in JOBS
          for spec in replicas(name).values()]
  done = validate(*resources('volumes'), *resources('download'), *pods,
                  *(resources(name)[1] for name in JOBS))
  assert done.returncode == 0, done.stderr
  pods[0]['spec']['fsgroup'] = 1000
  assert "'fsgroup' was unexpected" in validate(pods[0]).stderr
