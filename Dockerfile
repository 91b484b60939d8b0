# The page of Timbre in a container.
#   CPU:   docker build -t timbre .
#   CUDA:  docker build -t timbre --build-arg TORCH_BACKEND=cu130 .   and run with --gpus all
FROM python:3.12-slim

# cpu leaves out about 3.3 GiB of CUDA libraries. cu130 is what PyPI's torch 2.11 is built for; the
# wheels bring CUDA along, so that the host needs only NVIDIA's driver and container toolkit.
ARG TORCH_BACKEND=cpu

# espeak-ng makes phonemes. g++ builds the fast optimizer kernels and what torch.compile generates.
RUN apt-get update \
    && apt-get install -y --no-install-recommends espeak-ng g++ \
    && rm -rf /var/lib/apt/lists/*

RUN pip install --no-cache-dir uv

WORKDIR /src
# The dependencies form a layer of their own, which changes of the code leave as it is.
COPY requirements.txt requirements.lock ./
RUN grep -vE '^(torch|torchaudio|triton|cuda-|nvidia-[^m])' \
        requirements.lock > constraints.txt \
    && uv pip install --system --no-cache --torch-backend "$TORCH_BACKEND" \
        -r requirements.txt -c constraints.txt
COPY . .
RUN uv pip install --system --no-cache --no-deps . && rm -rf /src

# Runs belong to an ordinary user; a mounted folder has to be writable for id 1000.
RUN useradd --create-home --uid 1000 timbre \
    && mkdir /data && chown timbre:timbre /data
USER timbre
WORKDIR /data
ENV TIMBRE_CACHE=/data/cache
VOLUME /data
EXPOSE 7860

# Reachable from other machines, the page needs a login: docker run -e TIMBRE_AUTH=user:password ...
# TIMBRE_AUTH keeps the password out of the process list, where --auth would show it.
ENTRYPOINT ["timbre"]
CMD ["--host", "0.0.0.0", "--no-browser"]
