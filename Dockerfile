# fedhca2 for the server and the sites of a federation: docs/services.md says how to run it.
#   docker build --tag fedhca2 .
#   docker build --tag fedhca2:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .

ARG PYTHON=python:3.11-slim

# hadolint ignore=DL3006
FROM ${PYTHON} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY src src
RUN python -m venv /opt/fedhca2 \
    && /opt/fedhca2/bin/pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" --constraint constraints.txt '.[flower]' \
    && /opt/fedhca2/bin/pip uninstall --yes pip

# hadolint ignore=DL3006
FROM ${PYTHON}
RUN useradd --uid 1000 --create-home --home-dir /var/lib/fedhca2 fedhca2
COPY --from=build /opt/fedhca2 /opt/fedhca2
ENV PATH=/opt/fedhca2/bin:$PATH
USER 1000
WORKDIR /var/lib/fedhca2
EXPOSE 8000
ENTRYPOINT ["fedhca2"]
CMD ["--help"]
