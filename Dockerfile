# The program on TensorFlow's own GPU image of 1.15 (CUDA 10.0: Pascal, Volta and Turing GPUs).
#
#   docker build -t estimator-train .
#   docker run --rm --gpus all -v DATA:/data -v OUT:/model estimator-train FLAG...
ARG BASE_IMAGE=tensorflow/tensorflow:1.15.0-gpu-py3
FROM ${BASE_IMAGE}

# The base's TensorFlow, and what it stands on, is used as it is; the rest of the lock file is added.
COPY requirements/py36.txt /opt/estimator_train/requirements/
RUN python3 -c "import tensorflow as tf; assert tf.__version__.startswith('1.15'), tf.__version__" \
 && awk '/^[a-z]/ { added = /^(absl-py|tqdm|importlib-resources|zipp)==/ } added' \
      /opt/estimator_train/requirements/py36.txt >/tmp/added.txt \
 && python3 -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/added.txt \
 && rm /tmp/added.txt

COPY estimator_train /opt/estimator_train/estimator_train
ENV PYTHONPATH=/opt/estimator_train PYTHONUNBUFFERED=1 HOME=/tmp
VOLUME /data /model
WORKDIR /model
ENTRYPOINT ["python3", "-m", "estimator_train"]
