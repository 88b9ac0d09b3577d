# Adds Horovod, Open MPI and an SSH server to the image of the Dockerfile.
#
#   docker build -t estimator-train .
#   docker build -t estimator-train-horovod -f deploy/docker/horovod.Dockerfile .
#
# With NVIDIA's base image, which has Horovod and Open MPI, only the SSH server is added. Otherwise,
# Horovod is built for CPUs; for GPUs with NCCL, which has not been tested, add
# --build-arg HOROVOD_GPU_OPERATIONS=NCCL.
ARG BASE_IMAGE=estimator-train
FROM ${BASE_IMAGE}
ARG HOROVOD_GPU_OPERATIONS=
USER root
COPY requirements/horovod.txt /tmp/horovod.txt
# Packages of NVIDIA are not installed, and the key of their source has expired in old images.
# mpirun of NVIDIA's image is kept. The build of Horovod downloads a newer CMake if it needs one.
RUN set -e; rm -f /etc/apt/sources.list.d/cuda*.list /etc/apt/sources.list.d/nvidia*.list; \
    apt-get -qq update; \
    command -v mpirun >/dev/null || mpi="openmpi-bin libopenmpi-dev"; \
    apt-get -qq install --yes --no-install-recommends openssh-server openssh-client ${mpi:-}; \
    if ! python -c 'import horovod.tensorflow' 2>/dev/null; then \
      apt-get -qq install --yes --no-install-recommends cmake g++ make; \
      export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1; \
      export HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1; \
      export HOROVOD_GPU_OPERATIONS="${HOROVOD_GPU_OPERATIONS}"; \
      python -m pip install --no-cache-dir --no-deps cloudpickle==2.2.1 PyYAML==6.0.1; \
      python -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/horovod.txt; \
      apt-get -qq purge --yes cmake g++ make; \
      apt-get -qq autoremove --yes; \
      python -c 'import horovod.tensorflow'; \
    fi; \
    rm -rf /var/lib/apt/lists/* /tmp/horovod.txt
# SSH works only for users with an entry in /etc/passwd. mpirun starts the other ranks by SSH.
RUN useradd --uid 1000 --create-home train && mkdir -p /run/sshd \
 && printf '%s\n' 'Port 2222' 'HostKey /home/train/.ssh/id_rsa' 'PidFile none' 'StrictModes no' \
      'AuthorizedKeysFile .ssh/authorized_keys' 'PasswordAuthentication no' \
      > /opt/estimator_train/sshd_config \
 && printf '%s\n' 'Host *' '  Port 2222' '  StrictHostKeyChecking no' \
      '  UserKnownHostsFile /dev/null' >> /etc/ssh/ssh_config
ENV HOME=/home/train
USER 1000:1000
