# docker build -t tightrope . && docker run --rm tightrope
# Accounts, trains a small private model, and writes a certificate and a report.
FROM python:3.12-slim
WORKDIR /tightrope
# An index with PyTorch's build for processors saves gigabytes: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[train,sklearn,plot,cli,rigorous]"
RUN useradd --create-home runner
USER runner
WORKDIR /home/runner
CMD ["tightrope", "demo"]
