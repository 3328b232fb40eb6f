"""The model layer, through the real client of a provider against a stand-in on this machine."""
