"""Properties take the time they need: a slow machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("client", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("client")
