"""What a durable step costs, side by side with a bare Celery hop on the same broker: `make bench`."""
