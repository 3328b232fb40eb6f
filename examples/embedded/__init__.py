"""An agent moves into an app that is there: a book shop with a Celery app, a Flask app and a Redis of its own.

jobs.py has the team's Celery tasks, as they were. desk.py is the agent, which hands work to them. worker.py puts the agent into the
Celery app (`tasks.install`), and the last line of site.py puts its routes beside the team's own (`web.blueprint`).

    celery -A examples.embedded.worker:celery worker
    ORCHESTRATOR_ALLOW_ANONYMOUS=loopback gunicorn --threads 32 examples.embedded.site:site

Then the shop is at /orders, and the agent at /agent/v1. `REDIS_URL` says where both live (redis://127.0.0.1:6379/0).
"""
