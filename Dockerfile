# The program in an image.
#
#   docker build -t estimator-train .
#     GPUs up to Turing, on TensorFlow's own image of 1.15 (CUDA 10.0, Python 3.6)
#   docker build -t estimator-train --build-arg BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3 .
#     Ampere, Ada and Hopper, on NVIDIA's (TensorFlow 1.15.5+nv, Python 3.8)
#   docker build -t estimator-train --build-arg BASE_IMAGE=python:3.7-slim \
#     --build-arg TENSORFLOW=onednn .
#     CPUs; TENSORFLOW is base (the base's own), stock or onednn
#
#   docker run --rm --gpus all -v DATA:/data -v OUT:/model estimator-train FLAG...
#     The flagfiles' data/ and runs/ are /data and /model; README tells of hosts
ARG BASE_IMAGE=tensorflow/tensorflow:1.15.0-gpu-py3

# In stages of their own, so that the image gets their outcome without pip's traces and, when only
# the program changed, no package is installed again.
FROM ${BASE_IMAGE} AS packages
ARG TENSORFLOW=base
COPY requirements/install_image.py requirements/pip.txt requirements/image*.txt /tmp/requirements/
RUN python3 /tmp/requirements/install_image.py "${TENSORFLOW}" /opt/estimator_train/packages

# Readable by any user, whatever the checkout's umask; compiled, as a run may not write here.
FROM ${BASE_IMAGE} AS program
COPY estimator_train /opt/estimator_train/estimator_train
RUN chmod -R u=rwX,go=rX /opt/estimator_train && python3 -m compileall -q /opt/estimator_train

FROM ${BASE_IMAGE}
# Fresh volumes take the mode of these folders: any user may write there. Flagfiles name data/ and
# runs/ in the working directory, which lead to them. Not every base has `python`, or means 3 by it.
RUN mkdir -p /data /model /opt/estimator_train && chmod 1777 /data /model \
 && ln -s /data /opt/estimator_train/data && ln -s /model /opt/estimator_train/runs \
 && { python -c 'import sys; sys.exit(sys.version_info < (3,))' 2>/dev/null \
      || ln -sf "$(command -v python3)" /usr/local/bin/python; }
COPY --from=packages /opt/estimator_train/packages /opt/estimator_train/packages
COPY --from=program /opt/estimator_train/estimator_train /opt/estimator_train/estimator_train

# /tmp is the one folder that every user can write, also where the rest is read-only.
ENV PYTHONPATH=/opt/estimator_train:/opt/estimator_train/packages${PYTHONPATH:+:${PYTHONPATH}} \
    PYTHONUNBUFFERED=1 LANG=C.UTF-8 HOME=/tmp ESTIMATOR_TRAIN_IMAGE=1
VOLUME /data /model
WORKDIR /opt/estimator_train
USER 1000:1000
# Not through a shell: SIGTERM must reach Python.
ENTRYPOINT ["python", "-m", "estimator_train"]
CMD ["--flagfile=estimator_train/configs/quickstart.flags"]

ARG BASE_IMAGE
ARG REVISION=
LABEL org.opencontainers.image.title="estimator_train" \
      org.opencontainers.image.description="Trains Keras models through TensorFlow 1.15 Estimators" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
