# One image for every process: the command says which one it is (docker-compose.yml has them).
FROM python:3.11-slim AS build
# Your model providers: --build-arg EXTRAS=flower,anthropic
ARG EXTRAS=flower,openai
WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml requirements.lock README.md LICENSE celeryconfig.py ./
COPY orchestrator orchestrator
COPY tasks tasks
COPY web web
RUN /opt/venv/bin/pip install --no-cache-dir -c requirements.lock ".[${EXTRAS}]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home app
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
# Your own agents go here.
COPY examples examples
USER app
CMD ["orchestrator", "--help"]
