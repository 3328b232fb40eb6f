"""The App of the acceptance tests with two channels: one for the API, one for signed webhooks."""

from __future__ import annotations

from orchestrator import App
from orchestrator.channels import Channel, StandardWebhook
from tests.acceptance.load import app as load

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSBhY2NlcHRhbmNlIHRlc3Rz"

app = App(agents=load.agents, channels=[Channel("desk"), StandardWebhook("hooks", secrets=[SECRET])])
