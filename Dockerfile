# An image with the program. See docs/docker.md.
#
#   docker build -t estimator-train .
#     for GPUs up to Turing, based on TensorFlow's image of 1.15 (CUDA 10.0, Python 3.6)
#   docker build -t estimator-train --build-arg BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3 .
#     for Ampere, Ada and Hopper GPUs, based on NVIDIA's image (TensorFlow 1.15.5+nv, Python 3.8)
#   docker build -t estimator-train --build-arg BASE_IMAGE=python:3.7-slim \
#     --build-arg TENSORFLOW=onednn .
#     for CPUs. TENSORFLOW is base (that of the base image), stock or onednn
#
#   docker run --rm --gpus all -v DATA:/data -v OUT:/model estimator-train FLAG...
#     In the image, the folders data/ and runs/ of the flagfiles are /data and /model
ARG BASE_IMAGE=tensorflow/tensorflow:1.15.0-gpu-py3

# Packages and program are prepared in separate stages, so that the image does not contain the files
# that pip leaves behind, and a change in the program does not install the packages again.
FROM ${BASE_IMAGE} AS packages
ARG TENSORFLOW=base
COPY requirements/install_image.py requirements/pip.txt requirements/image*.txt /tmp/requirements/
RUN python3 /tmp/requirements/install_image.py "${TENSORFLOW}" /opt/estimator_train/packages

# Makes the program readable by any user, whatever the permissions in the checkout, and compiles it,
# because a run may have no permission to write the compiled files.
FROM ${BASE_IMAGE} AS program
COPY estimator_train /opt/estimator_train/estimator_train
COPY scripts/verify_gpu scripts/verify_gpu.py scripts/gpu_predictions.json /opt/estimator_train/scripts/
RUN chmod -R u=rwX,go=rX /opt/estimator_train && python3 -m compileall -q /opt/estimator_train

FROM ${BASE_IMAGE}
# New volumes get the permissions of these folders, so that any user can write to them. The links
# data/ and runs/, which flagfiles refer to, lead to them. In some base images, `python` does not
# exist or is Python 2.
RUN mkdir -p /data /model /opt/estimator_train && chmod 1777 /data /model \
 && ln -s /data /opt/estimator_train/data && ln -s /model /opt/estimator_train/runs \
 && { python -c 'import sys; sys.exit(sys.version_info < (3,))' 2>/dev/null \
      || ln -sf "$(command -v python3)" /usr/local/bin/python; }
COPY --from=packages /opt/estimator_train/packages /opt/estimator_train/packages
COPY --from=program /opt/estimator_train/estimator_train /opt/estimator_train/estimator_train
COPY --from=program /opt/estimator_train/scripts /opt/estimator_train/scripts

# /tmp is the only folder that every user can write to, even if the root file system is read-only.
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
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
