"""An agent moves into an app that is there: a book shop with a Celery app, a Flask app and a Redis of its own.

    jobs.py    the team's Celery tasks, as they were
    desk.py    the agent, which hands work to those tasks
    worker.py  the Celery app, and one line:        tasks.install(celery, app)
    site.py    the team's Flask routes, and one line: site.register_blueprint(web.blueprint(app), ...)

    celery -A examples.embedded.worker:celery worker
    ORCHESTRATOR_ALLOW_ANONYMOUS=loopback gunicorn --threads 32 examples.embedded.site:site

Then the shop is at /orders, and the agent at /agent/v1. `REDIS_URL` says where both live (redis://127.0.0.1:6379/0).
"""
