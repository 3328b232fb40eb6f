"""Celery's settings for the workers of this project: settings only. What depends on the environment is added in `tasks`.

Celery carries hints here, the truth is in the journal. So nothing is kept for redelivery (the keeper rings again), no result is
stored, and nothing waits for ever for a broker that does not answer.
"""

# Celery 5.7.0 dies of a Redis restart while a message is unacknowledged; without the emulation it survives, at a fifth of the commands.
# These are options of the redis transport; `tasks` leaves them out for any other broker.
broker_transport_options = {
    "ack_emulation": False,
    "priority_steps": [0],
    "socket_timeout": 5,
    "socket_connect_timeout": 3,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "retry_on_timeout": False,
    "client_name": "orchestrator-worker",
}
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
broker_pool_limit = 32

task_acks_late = True
task_ignore_result = True
task_serializer = "json"
accept_content = ["json"]
task_create_missing_queues = True
task_send_sent_event = False
task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}

# Model calls are I/O. CPU-heavy tools: --pool prefork. Debugging: --pool solo.
worker_pool = "threads"
worker_prefetch_multiplier = 1
worker_disable_prefetch = False
worker_cancel_long_running_tasks_on_connection_loss = False
worker_hijack_root_logger = True
worker_soft_shutdown_timeout = 0
enable_utc = True
